"""Measures how fast a model is read from a disk: in its packed form, against the disk itself and against loading
safetensors and copying."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from functools import partial
from math import prod
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.transfer.disk_model import drop_cached, make_disk_model, raw_buffers, read_raw
from livescale.load.kept import KEPT
from livescale.services.host.disk import ThreadDisk, allocate
from livescale.services.host.stored import open_stored
from livescale.shared.links.contract import Link
from livescale.shared.links.open import open_link
from livescale.shared.messages.parameters import DType, ModelSpec
from livescale.shared.messages.transfers import Inflow, Node, Outflow, Send
from livescale.shared.model.block_layout import ITEM_BYTES, block_layouts
from livescale.shared.model.checkpoint import load_model_config
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.transfer.chunks import MAX_CHUNK_BYTES
from livescale.shared.transfer.flow_end import ModelCopy
from livescale.shared.transfer.receiver import BlockReceiver, Events
from livescale.shared.transfer.sender import BlockSender
from livescale.shared.transfer.waiting import ReadyBlocks

DTYPE: DType = "bfloat16"
SECONDS = 60.0
T = TypeVar("T")

BENCH = "transfer"
DISK_BAR, LOAD_BAR, FIRST_BAR = 0.9, 2.0, 1.0


async def read_model(
    directory: Path, memory: Sequence[memoryview], *, packed: bool = True, ready: ReadyBlocks | None = None
) -> float:
    """Seconds that a host which is up takes to read the model, checksums included: from the packed form, or from
    safetensors. Raises BenchFailed."""
    disk = ThreadDisk(keep=packed)
    stored = await disk.open(ModelSpec(name="bench", path=str(directory), dtype=DTYPE))
    began, index = time.perf_counter(), 0
    try:
        async with aclosing(disk.read(stored, dict(enumerate(memory)))) as read:
            async for _ in read:
                if ready is not None:
                    ready.add(index)
                index += 1
        if stored.is_packed != packed:
            raise BenchFailed(f"{directory}: the packed form was not read")
        return time.perf_counter() - began
    finally:
        stored.close()
        await disk.close()


def load_and_copy(directory: Path, memory: Sequence[memoryview]) -> float:
    """Seconds as programs take without a packed form: the library loads tensors, which are copied to where they are
    used."""
    began = time.perf_counter()
    tensors = load_file(directory / "model.safetensors")
    for layout, block in zip(block_layouts(load_model_config(directory), DTYPE), memory, strict=True):
        for tensor in layout.tensors:
            size_bytes = prod(tensor.shape) * ITEM_BYTES[DTYPE]
            target = torch.frombuffer(block, dtype=torch.bfloat16, offset=tensor.offset, count=size_bytes // 2)
            target.copy_(tensors[tensor.name].flatten())
    return time.perf_counter() - began


async def send_while_reading(
    directory: Path, memory: Sequence[memoryview], settings: LinkSettings
) -> tuple[float, float]:
    """Seconds from the begin of the read until the first block was verified at a receiver, and until the last was read.

    Raises BenchFailed.
    """
    sender, receiver = await open_link(settings), await open_link(settings)
    try:
        async with asyncio.timeout(SECONDS):
            return await _overlap(directory, memory, sender, receiver)
    except TimeoutError:
        raise BenchFailed(f"the model did not arrive within {SECONDS:g} s") from None
    finally:
        await sender.close()
        await receiver.close()


async def _overlap(directory: Path, memory: Sequence[memoryview], sender: Link, receiver: Link) -> tuple[float, float]:
    now, ready, arrived = asyncio.get_running_loop().time, ReadyBlocks(), list[float]()
    with closing(open_stored(directory, DTYPE, keep=True)) as stored:
        manifest = stored.manifest
    assert manifest is not None
    with ThreadPoolExecutor(1) as executor:
        async with asyncio.TaskGroup() as tasks:
            outgoing = BlockSender("host", sender, tasks, lambda: None)
            outgoing.start(_order(receiver.address), list(memory), lambda chunk: ready.wait_ready(chunk.block))
            events = Events(lambda: None, lambda block: arrived.append(now()), lambda ticket, failure: None)
            copy = [memoryview(bytearray(block.size_bytes)) for block in manifest.blocks]
            part = ModelCopy("worker", MAX_CHUNK_BYTES, copy)
            incoming = BlockReceiver(receiver, part, manifest.blocks, executor, events, tasks)
            upstream = Node(id="host", place="host", address=sender.address)
            incoming.follow([Inflow(ticket=0, upstream=upstream)], secret=b"")
            receiving = tasks.create_task(incoming.run())
            began = now()
            seconds = await read_model(directory, memory, ready=ready)
            await receiving
    return arrived[0] - began, seconds


def _order(address: bytes) -> Send:
    flow = Outflow(ticket=0, downstream=Node(id="worker", place="worker", address=address))
    return Send(plan_id="bench", version="bench", outflows=[flow], chunk_bytes=MAX_CHUNK_BYTES, epoch=1)


def disk(printer: RecordPrinter, settings: LinkSettings, size_bytes: int, passes: int) -> Iterator[Record]:
    """Every pass reads the same model in each way, with nothing of it in the page cache. At last it is sent while it
    is read: the first block should arrive before the last is read."""
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT, prefix="bench-disk-") as name:
        printer.progress(f"disk: making and packing a checkpoint of {size_bytes / 1e6:.0f} MB")
        directory = make_disk_model(Path(name), size_bytes)
        with closing(open_stored(directory, "bfloat16", keep=True)) as stored:
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
