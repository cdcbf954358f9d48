"""Measures how fast a model is read from a disk: in its packed form, against the disk itself and against loading
safetensors and copying."""

import asyncio
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.transfer.disk_model import drop_cached, make_disk_model
from livescale.load.bench.transfer.disk_reads import DTYPE, load_and_copy, raw_buffers, read_model, read_raw
from livescale.load.bench.transfer.disk_sending import send_while_reading
from livescale.load.kept import KEPT
from livescale.services.host.disk import allocate
from livescale.services.host.stored import open_stored
from livescale.shared.runtime.settings import LinkSettings

T = TypeVar("T")

BENCH = "transfer"
DISK_BAR, LOAD_BAR, FIRST_BAR = 0.9, 2.0, 1.0


def disk(printer: RecordPrinter, settings: LinkSettings, size_bytes: int, passes: int) -> Iterator[Record]:
    """Every pass reads the same model in each way, with nothing of it in the page cache. At last it is sent while it
    is read: the first block should arrive before the last is read."""
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT, prefix="bench-disk-") as name:
        printer.progress(f"disk: making and packing a checkpoint of {size_bytes / 1e6:.0f} MB")
        directory = make_disk_model(Path(name), size_bytes)
        with closing(open_stored(directory, DTYPE, keep=True)) as stored:
            packed, memory = stored.pack(lambda _: None), allocate(stored.sizes)
        scratch = raw_buffers()
        ways: tuple[Callable[[], float], ...] = (
            lambda: read_raw(packed, scratch),
            lambda: asyncio.run(read_model(directory, memory)),
            lambda: asyncio.run(read_model(directory, memory, packed=False)),
            lambda: load_and_copy(directory, memory),
        )
        times: list[list[float]] = [[] for _ in ways]
        for number in range(passes):
            printer.progress(f"disk: pass {number + 1} of {passes}")
            # Repeated reads may come from a cache below this machine: each reader is the first as often as the last.
            for way in range(len(ways))[:: 1 if number % 2 else -1]:
                times[way].append(printer.samples.take(partial(with_nothing_cached, directory, ways[way])))
        gigabytes = sum(block.nbytes for block in memory) / 1e9
        raw, read, unpacked, loaded = (gigabytes / statistics.median(each) for each in times)
        yield measured(BENCH, "disk, direct reads alone", raw, "GB/s")
        yield measured(BENCH, "disk, packed", read, "GB/s", raw, at_least=DISK_BAR)
        yield measured(BENCH, "disk, safetensors as hosts read them", unpacked, "GB/s", raw)
        yield measured(BENCH, "disk, packed against safetensors and copy", read, "GB/s", loaded, at_least=LOAD_BAR)
        sent = partial(
            with_nothing_cached, directory, lambda: asyncio.run(send_while_reading(directory, memory, settings))
        )
        first, last = printer.samples.take(sent)
        yield measured(BENCH, "disk, first block arrived", first, "s", last, at_most=FIRST_BAR)


def with_nothing_cached(directory: Path, way: Callable[[], T]) -> T:
    """Run a way to read the model while none of it is in the page cache."""
    drop_cached(directory)
    return way()
