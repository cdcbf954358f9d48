"""`livescale bench pipeline`: new instances serve between them before any is whole, against stopping the world."""

import sys
from functools import partial
from pathlib import Path

import click
import uvloop

from livescale.load.bench.fleet import BenchFailed
from livescale.load.bench.page import report_option
from livescale.load.bench.pipeline_page import write_page
from livescale.load.bench.pipeline_runs import BENCH, FORMED_RUNS, Run, rows
from livescale.load.bench.pipeline_stage import (
    PROMPT,
    ROOM,
    TOKENS,
    PipelineStage,
    kept_even_model,
    pipeline_stage,
    stack_settings,
)
from livescale.load.bench.record import Printer
from livescale.load.bench.system import Renewable, logged, renewable
from livescale.load.report import check_report_path
from livescale.services.supervisor.processes import Echo
from livescale.shared.messages.transfers import LiveMode
from livescale.shared.model.latency import find_latency
from livescale.shared.runtime.settings import SwitchKv

# By what workers are told to do with KV: from how many sources, and how.
CASES: dict[SwitchKv, tuple[tuple[int, LiveMode], ...]] = {
    "auto": ((1, "off"), (1, "pipeline"), (2, "off"), (2, "pipeline")),
    "move": ((2, "pipeline"),),
    "recompute": ((2, "pipeline"),),
}
FORMING: tuple[int, LiveMode] = (2, "pipeline")
PROFILE, SPEED = "llama3-8b-a100", 0.4


@click.command()
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Of each case, in turn.")
@click.option("--rate", type=click.FloatRange(1), default=8.0, show_default=True, help="Of every link, in MB/s.")
@report_option("livescale-pipeline.html")
def pipeline(repeats: int, rate: float, report: Path) -> None:
    """One instance serves while requests wait, and four more are asked for; k nodes have the model.

    k = 1: the instance that serves; its host's process is stopped. k = 2: its host's memory, too. Real processes, bus
    and links; engines are modelled. The first token: seconds from the first SEND until a new instance made one, against
    when the first pipeline should have every block by the plan, and the modelled prefill of one prompt. The pause:
    between two tokens of any request while pipelines end, at most what it takes to compute the share of one of their
    workers, prompts and tokens, in one step; also with all KV computed again, and, with no bar, with all of it moved.
    With k = 2 pipelines have to form in each of at least ten runs. With k = 1 a node is whole nearly as soon as there
    could be a pipeline, and so there is none: what one could have gained at most is told.
    """
    check_report_path(report)
    printer = Printer(BENCH)
    checkpoint = kept_even_model(printer.progress)
    try:
        with logged() as echo:
            runs = uvloop.run(measure(printer, checkpoint, repeats, rate * 1e6, echo))
        # The share of a worker of a pipeline of two is half of what its leader has room for.
        for record in rows(runs, find_latency(PROFILE), SPEED, PROMPT + TOKENS // 2, ROOM // 2):
            printer.emit(record)
    except BenchFailed as error:
        raise click.ClickException(str(error)) from None
    kept = printer.finish()
    write_page(report, runs, printer.records, repeats, printer.conditions())
    printer.progress(f"Report: {report}")
    sys.exit(0 if kept else 1)


async def measure(printer: Printer, checkpoint: Path, repeats: int, rate: float, echo: Echo) -> list[Run]:
    """Raises BenchFailed."""
    runs, tokens = list[Run](), dict[int, list[int]]()
    for switch_kv, cases in CASES.items():
        told = stack_settings(checkpoint, rate, PROFILE, SPEED, switch_kv)
        async with renewable(partial(pipeline_stage, told, tokens, printer.progress, echo)) as stages:
            more = (FORMING,) * forming_runs(repeats) if switch_kv == "auto" else ()
            asked = cases * repeats + more
            for number, (sources, mode) in enumerate(asked, 1):
                printer.progress(f"{mode}, k = {sources}, KV {switch_kv}: run {number} of {len(asked)}")
                run = await sampled(printer, stages, mode, sources)
                runs.append(run)
                printer.progress(f"  whole after {run.load_seconds:.2f} s, {run.finished_loading} requests finished")
                for pipeline in run.unformed if mode == "pipeline" else ():
                    printer.progress("; ".join([f"  no pipeline {pipeline}", *run.left_out]))
    return runs


def forming_runs(repeats: int) -> int:
    """How many more there have to be to tell whether pipelines form."""
    return max(0, FORMED_RUNS - repeats * sum(cases.count(FORMING) for cases in CASES.values()))


async def sampled(printer: Printer, stages: Renewable[PipelineStage], mode: LiveMode, sources: int) -> Run:
    return await printer.samples.take_async(lambda: stages.now.run(mode, sources), stages.renew)
