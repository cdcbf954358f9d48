"""`livescale bench engine`: one worker's engine on one core, side by side with others in one run."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import click
import uvloop
from rich.console import Console

from livescale.load.bench.engine.page import rate_table, write_page
from livescale.load.bench.engine.processes import EngineProcessFailed
from livescale.load.bench.engine.rows import BENCH, OWN, SizeRun, rows, values, worker_rows
from livescale.load.bench.engine.run import measure_python, measure_size
from livescale.load.bench.engine.start import spare_seconds
from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.run import kernels_option, measuring, report_option, rounds_option
from livescale.load.kept import KEPT, kept_model
from livescale.load.sizes import Size
from livescale.services.worker.engine.kernels.variants import KernelsName
from livescale.shared.model.automatic_form import AskedDType, find_form

SIZES: Mapping[str, Size] = {"30m": "small", "120m": "medium", "500m": "large"}
MOST_LOST = 0.1
LOG = KEPT / "bench-engine.log"

option = partial(click.option, show_default=True, show_envvar=True)


@click.command()
@option(
    "--sizes",
    type=click.Choice(list(SIZES)),
    multiple=True,
    default=tuple(SIZES),
    envvar="LIVESCALE_SIZES",
    help="Sizes of the model, in parameters; may be given several times.",
)
@rounds_option(3)
@option(
    "--peers/--no-peers",
    default=True,
    envvar="LIVESCALE_PEERS",
    help="Also measure vLLM and llama.cpp, where `make bench-peers` installed them.",
)
@kernels_option("Kernels of this engine, as in `livescale run worker --help`. The results to reach depend on them.")
@option(
    "--dtype",
    type=click.Choice(get_args(AskedDType)),
    default="bfloat16",
    envvar="LIVESCALE_DTYPE",
    help="Number type of the model; auto is what `livescale up` takes on this machine. vLLM and llama.cpp are measured "
    "in bfloat16 only.",
)
@report_option("livescale-engine.html")
def engine(
    sizes: Sequence[str], rounds: int, peers: bool, kernels: KernelsName, dtype: AskedDType, report: Path
) -> None:
    """Compare a worker's engine with Hugging Face transformers, vLLM and llama.cpp, all on one core.

    Each engine has one thread; they run in turn, case by case. First the logits of every engine are compared with those
    of transformers in float32, or in float64 with --dtype float32. Rates are tokens a second of CPU time, so that other
    programs on the core do not count; start times are by the clock. What is measured while the core changes its speed
    is measured again. It takes about 10 minutes without vLLM and llama.cpp.

    To emulate a CPU without AVX-512, use --kernels portable, ATEN_CPU_CAPABILITY=avx2 and ONEDNN_MAX_CPU_ISA=AVX2: then
    all engines use the same instructions.
    """
    printer = RecordPrinter(BENCH)
    checkpoints = {size: kept_model(SIZES[size], printer.progress) for size in SIZES if size in sizes}
    runs: list[SizeRun] = []
    LOG.parent.mkdir(parents=True, exist_ok=True)
    try:
        with LOG.open("w", encoding="utf-8") as log:
            for size, checkpoint in checkpoints.items():
                run = SizeRun(size, find_form(dtype)[0])
                measure_size(run, checkpoint, kernels, rounds, peers, log, printer.progress)
                runs.append(run)
                printer.progress(f"{size}: with the kernels {run.ready[OWN].kernels}, in {run.dtype}")
                if run.lost > MOST_LOST:
                    printer.progress(f"{size}: other programs had the core for {run.lost:.0%} of the time")
                for record in values(run):
                    printer.emit(record, in_table=False)
                for record in rows(run):
                    printer.emit(record)
            printer.progress("what a layer costs besides its kernels")
            cost = measure_python(next(iter(checkpoints.values())), kernels, log)
        printer.progress("a worker's start, in a whole system")
        with measuring(printer) as launcher:
            spare = uvloop.run(spare_seconds(launcher, rounds))
        for record in worker_rows(cost, spare):
            printer.emit(record)
    except EngineProcessFailed as error:
        raise click.ClickException(f"{error}\nIts log is {LOG}") from None
    for run in runs:
        Console(stderr=True).print(rate_table(run))
    kept = printer.finish()
    write_page(report, runs, printer.records, rounds, printer.conditions())
    printer.progress(f"Report: {report}")
    sys.exit(0 if kept else 1)
