"""`livescale bench scale`: the time from a decision until new workers have all parameters, against the bare link's."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import click
import uvloop

from livescale.load.bench.losses import watched_stack
from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.samples import BenchFailed, renewable
from livescale.load.bench.scales import there_and_back
from livescale.load.bench.transfer.fleet import started
from livescale.load.bench.transfer.jobs import hop_jobs, seconds
from livescale.load.kept import kept_model, logged
from livescale.services.supervisor.model_settings import ModelSettings
from livescale.services.supervisor.processes import Echo
from livescale.services.supervisor.settings import StackSettings
from livescale.shared.memory.arena import ALIGNMENT
from livescale.shared.messages.registry import AskModels
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.subjects import MODELS
from livescale.shared.transfer.chunks import MIB, chunk_bytes_for

BENCH = "scale"
MODEL = "bench"
BAR = 1.1
SLACK_SECONDS = 0.1


@click.command()
@click.option(
    "--transport",
    type=click.Choice(["ucx", "socket"]),
    default="ucx",
    show_default=True,
    help="Transport between processes: UCX, or plain TCP sockets.",
)
@click.option("--rate", type=click.FloatRange(1), default=100.0, show_default=True, help="Rate of every link, in MB/s.")
@click.option(
    "--new",
    "counts",
    type=click.IntRange(1, 16),
    multiple=True,
    default=(1, 3),
    show_default=True,
    help="Number of instances to add; may be given several times.",
)
def scale(transport: Literal["ucx", "socket"], rate: float, counts: Sequence[int]) -> None:
    """Measure the time from a decision until new workers have all parameters.

    It is compared with the same bytes over a bare link in the same run.
    """
    printer = RecordPrinter(BENCH)
    link = LinkSettings(transport=transport, link_rate=rate * 1e6)
    checkpoint = kept_model("medium", printer.progress)
    try:
        with logged() as echo:
            size_bytes, records = uvloop.run(
                scales(printer, stack_settings(checkpoint, link, max(counts)), counts, echo)
            )
        printer.progress(f"probe: the same {size_bytes / 1e6:.0f} MB over one bare link")
        probe = printer.samples.take(partial(bare_link, link, size_bytes))
    except BenchFailed as error:
        raise click.ClickException(str(error)) from None
    for record in report(counts, records, probe):
        printer.emit(record)
    if not printer.finish():
        sys.exit(1)


def stack_settings(checkpoint: Path, link: LinkSettings, most: int) -> StackSettings:
    """One instance serves, `most` workers are spare, and the monitor leaves what was scaled by hand alone."""
    parameters = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
    return StackSettings(
        models=(ModelSettings(name=MODEL, path=str(checkpoint), downscale_delay_s=3600, max_model_len=2048),),
        workers=most + 1,
        port=0,
        device="cpu",
        dtype="float32",
        arena_bytes=2 * parameters + 16 * MIB,
        kv_bytes=128 * MIB,
        transport=link.transport,
        link_rate=link.link_rate,
        keep_parameters=False,  # each scale is to move them
    )


async def scales(
    printer: RecordPrinter, settings: StackSettings, counts: Sequence[int], echo: Echo
) -> tuple[int, list[ScaleRecord]]:
    """Scale out by each of `counts`, back to one between; the model's bytes and the records."""
    async with renewable(lambda: watched_stack(settings, printer.progress, echo)) as stacks:
        models = await stacks.now[0].bus.call(MODELS, AskModels(), timeout=5.0)

        async def out_and_back(count: int) -> ScaleRecord:
            printer.progress(f"scaling out to {count} new workers")
            stack, losses = stacks.now
            return await losses.over(partial(there_and_back, stack.bus, MODEL, 1 + count))

        records = [await printer.samples.take_async(partial(out_and_back, count), stacks.renew) for count in counts]
    return models.models[0].size_bytes, records


def bare_link(link: LinkSettings, size_bytes: int) -> float:
    """Seconds for as many bytes in the same chunks between two processes that do nothing else."""
    chunk = chunk_bytes_for(link.link_rate)
    whole, rest = divmod(size_bytes, chunk)
    sizes = [chunk] * whole + [rest + -rest % ALIGNMENT]
    with started(2, link, sizes) as fleet:
        return seconds(fleet.run(hop_jobs(fleet, len(sizes))))


def report(counts: Sequence[int], records: Sequence[ScaleRecord], probe: float) -> Iterator[Record]:
    """The bar is 1.1 times the probe and 100 ms, as a ratio to the probe."""
    yield measured(BENCH, "bare link", probe, "s")
    for count, record in zip(counts, records, strict=True):
        times = {phase.name: phase.at for phase in record.phases}  # the last worker's, where there are several
        bar = BAR + SLACK_SECONDS / probe
        took = times["whole"] - record.decision.at
        yield measured(BENCH, f"decision to whole, {count} new", took, "s", probe, at_most=bar)
        first = min(phase.at for phase in record.phases if phase.name == "first_byte") - record.decision.at
        yield measured(BENCH, f"decision to first byte, {count} new", first * 1e3, "ms")
