"""`livescale bench engine`: one worker's engine on one core, side by side with others in one run."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import click
import uvloop
from rich.console import Console

from livescale.load.bench.engine_members import MemberFailed
from livescale.load.bench.engine_page import write_page
from livescale.load.bench.engine_rows import BENCH, OWN, SizeRun, rows, values, worker_rows
from livescale.load.bench.engine_run import measure_python, measure_size
from livescale.load.bench.engine_spare import spare_seconds
from livescale.load.bench.engine_table import rate_table
from livescale.load.bench.page import report_option
from livescale.load.bench.record import Printer
from livescale.load.bench.system import logged
from livescale.load.kept import KEPT, kept_model
from livescale.load.report import check_report_path
from livescale.load.sizes import Size
from livescale.services.worker.engine.kernels.variants import KernelsName
from livescale.shared.messages.parameters import DType

SIZES: Mapping[str, Size] = {"30m": "small", "120m": "medium", "500m": "large"}
MOST_LOST = 0.1
LOG = KEPT / "bench-engine.log"

option = partial(click.option, show_default=True, show_envvar=True)


@click.command()
@option("--sizes", type=click.Choice(list(SIZES)), multiple=True, default=tuple(SIZES), envvar="LIVESCALE_SIZES")
@option("--rounds", type=click.IntRange(1), default=3, envvar="LIVESCALE_ROUNDS", help="Medians of them count.")
@option(
    "--peers/--no-peers",
    default=True,
    envvar="LIVESCALE_PEERS",
    help="vLLM and llama.cpp too, where `make bench-peers` installed them.",
)
@option(
    "--kernels",
    type=click.Choice(get_args(KernelsName)),
    default="auto",
    envvar="LIVESCALE_KERNELS",
    help="Of this engine, as those of a worker. What is asked of it depends on which ran.",
)
@option(
    "--dtype",
    type=click.Choice(get_args(DType)),
    default="bfloat16",
    envvar="LIVESCALE_DTYPE",
    help="vLLM and llama.cpp are only asked in bfloat16.",
)
@report_option("livescale-engine.html")
def engine(sizes: Sequence[str], rounds: int, peers: bool, kernels: KernelsName, dtype: DType, report: Path) -> None:
    """A worker's scheduler and engine, Hugging Face transformers, vLLM and llama.cpp: a thread each, all on one core,
    asked in turn, case by case.

    Every engine's logits are compared with those of transformers first, in float32, or in float64 where float32 is
    asked for. Rates are tokens a second of CPU time, so that what others take of the core does not count; starts are by
    the clock. About 10 minutes without vLLM and llama.cpp.

    One CPU stands for another with --kernels portable, ATEN_CPU_CAPABILITY=avx2 and ONEDNN_MAX_CPU_ISA=AVX2: then all
    engines have the same instructions.
    """
    check_report_path(report)
    printer = Printer(BENCH)
    checkpoints = {size: kept_model(SIZES[size], printer.progress) for size in SIZES if size in sizes}
    runs: list[SizeRun] = []
    LOG.parent.mkdir(parents=True, exist_ok=True)
    try:
        with LOG.open("w", encoding="utf-8") as log:
            for size, checkpoint in checkpoints.items():
                run = SizeRun(size, dtype)
                measure_size(run, checkpoint, kernels, rounds, peers, log, printer.progress)
                runs.append(run)
                printer.progress(f"{size}: with the kernels {run.ready[OWN].kernels}, in {dtype}")
                if run.lost > MOST_LOST:
                    printer.progress(f"{size}: somebody else had the core for {run.lost:.0%} of the time")
                for record in values(run):
                    printer.emit(record, in_table=False)
                for record in rows(run):
                    printer.emit(record)
            printer.progress("what a layer costs besides its kernels")
            cost = measure_python(next(iter(checkpoints.values())), kernels, log)
        printer.progress("a worker's start, in a whole system")
        with logged() as echo:
            spare = uvloop.run(spare_seconds(rounds, printer.progress, echo))
        for record in worker_rows(cost, spare):
            printer.emit(record)
    except MemberFailed as error:
        raise click.ClickException(f"{error}\nIts log is {LOG}") from None
    for run in runs:
        Console(stderr=True).print(rate_table(run))
    kept = printer.finish()
    write_page(report, runs, printer.records, rounds, printer.conditions())
    printer.progress(f"Report: {report}")
    sys.exit(0 if kept else 1)
