"""`livescale bench pipeline`: new instances serve together before any has all parameters, against stopping the
world."""

import sys
from functools import partial
from pathlib import Path

import click
import uvloop

from livescale.load.bench.pipeline.even_model import kept_even_model
from livescale.load.bench.pipeline.page import write_page
from livescale.load.bench.pipeline.rows import BENCH, FORMED_RUNS, PipelineRun, rows
from livescale.load.bench.pipeline.system import PROMPT, ROOM, TOKENS, PipelineBenchSystem, pipeline_bench_system
from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.run import measuring, report_option
from livescale.load.bench.system import Launcher, Renewable, renewable
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
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Number of runs of each case; the cases take turns.",
)
@click.option("--rate", type=click.FloatRange(1), default=8.0, show_default=True, help="Rate of every link, in MB/s.")
@report_option("livescale-pipeline.html")
def pipeline(repeats: int, rate: float, report: Path) -> None:
    """Measure execution pipelines: four instances are added to one that serves, while requests wait.

    Processes, bus and links are real; engines are modelled. In the case k = 1 only the serving instance has the model:
    the host's process is stopped. With k = 2 the host's memory is a second source.

    The first token counts from the first SEND command. It is compared with the planned time at which the first pipeline
    has every block, plus the modelled prefill of one prompt. The pause is the longest time between two tokens of a
    request while pipelines end. It may be as long as one step that computes the share of one worker. It is also
    measured with all KV computed again and, without a bar, with all KV moved.

    With k = 2 pipelines have to form in each of at least ten runs. With k = 1 none forms, as an instance is complete
    nearly as soon as a pipeline could be; the table shows what one could have gained at most.
    """
    printer = RecordPrinter(BENCH)
    checkpoint = kept_even_model(printer.progress)
    with measuring(printer) as launcher:
        runs = uvloop.run(measure(printer, checkpoint, repeats, rate * 1e6, launcher))
        # The share of a worker of a pipeline of two is half of what its leader has room for.
        for record in rows(runs, find_latency(PROFILE), SPEED, PROMPT + TOKENS // 2, ROOM // 2):
            printer.emit(record)
    kept = printer.finish()
    write_page(report, runs, printer.records, repeats, printer.conditions())
    printer.progress(f"Report: {report}")
    sys.exit(0 if kept else 1)


async def measure(
    printer: RecordPrinter, checkpoint: Path, repeats: int, rate: float, launcher: Launcher
) -> list[PipelineRun]:
    """Run every case `repeats` times. Raises BenchFailed if a scale does not come to its end."""
    runs, tokens = list[PipelineRun](), dict[int, list[int]]()
    for switch_kv, cases in CASES.items():
        make = partial(pipeline_bench_system, launcher, checkpoint, rate, PROFILE, SPEED, switch_kv, tokens)
        async with renewable(make) as systems:
            more = (FORMING,) * forming_runs(repeats) if switch_kv == "auto" else ()
            asked = cases * repeats + more
            for number, (sources, mode) in enumerate(asked, 1):
                printer.progress(f"{mode}, k = {sources}, KV {switch_kv}: run {number} of {len(asked)}")
                run = await sampled(printer, systems, mode, sources)
                runs.append(run)
                printer.progress(f"  whole after {run.load_seconds:.2f} s, {run.finished_loading} requests finished")
                for pipeline in run.unformed if mode == "pipeline" else ():
                    printer.progress("; ".join([f"  no pipeline {pipeline}", *run.left_out]))
    return runs


def forming_runs(repeats: int) -> int:
    """How many more there have to be to tell whether pipelines form."""
    return max(0, FORMED_RUNS - repeats * sum(cases.count(FORMING) for cases in CASES.values()))


async def sampled(
    printer: RecordPrinter, systems: Renewable[PipelineBenchSystem], mode: LiveMode, sources: int
) -> PipelineRun:
    async def undisturbed() -> PipelineRun:
        system = systems.now
        return await system.watch.losses.over(lambda: system.run(mode, sources))

    return await printer.samples.take_async(undisturbed, systems.renew)
