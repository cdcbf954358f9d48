"""`livescale bench scale`: the time from a decision until new workers have all parameters, against the bare link's."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Literal

import click
import uvloop

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.run import measuring
from livescale.load.bench.system import MIB, BenchSystem, Launcher, parameter_bytes, renewable
from livescale.load.bench.transfer.fleet import hop_jobs, seconds, started
from livescale.load.kept import kept_model
from livescale.shared.memory.arena import ALIGNMENT
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.transfer.chunks import chunk_bytes_for

BENCH = "scale"
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
    with measuring(printer) as launcher:
        start = partial(start_spare, launcher, checkpoint, link, max(counts))
        size_bytes, records = uvloop.run(scales(printer, start, counts))
        printer.progress(f"probe: the same {size_bytes / 1e6:.0f} MB over one bare link")
        probe = printer.samples.take(partial(bare_link, link, size_bytes))
    for record in report(counts, records, probe):
        printer.emit(record)
    if not printer.finish():
        sys.exit(1)


def start_spare(
    launcher: Launcher, checkpoint: Path, link: LinkSettings, most: int, dtype: str = "float32"
) -> AbstractAsyncContextManager[BenchSystem]:
    """One instance serves, `most` workers are spare, and the monitor leaves what was scaled by hand alone."""
    return launcher.start(
        checkpoint,
        {"downscale_delay_s": 3600, "max_model_len": 2048},
        workers=most + 1,
        dtype=dtype,
        arena_bytes=2 * parameter_bytes(checkpoint) + 16 * MIB,
        kv_bytes=128 * MIB,
        transport=link.transport,
        link_rate=link.link_rate,
        keep_parameters=False,  # each scale is to move them
    )


async def scales(
    printer: RecordPrinter, start: Callable[[], AbstractAsyncContextManager[BenchSystem]], counts: Sequence[int]
) -> tuple[int, list[ScaleRecord]]:
    """Scale out by each of `counts`, back to one between; the model's bytes and the records."""
    async with renewable(start) as systems:
        size_bytes = await systems.now.model_bytes()

        async def out_and_back(count: int) -> ScaleRecord:
            printer.progress(f"scaling out to {count} new workers")
            return await systems.now.there_and_back(1 + count)

        records = [await printer.samples.take_async(partial(out_and_back, count), systems.renew) for count in counts]
    return size_bytes, records


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
