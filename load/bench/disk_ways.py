"""The ways to read a model that a bench of disks compares."""

import asyncio
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from math import prod
from pathlib import Path

import torch
from safetensors.torch import load_file

from livescale.load.bench.fleet import BenchFailed
from livescale.services.host.disk import ThreadDisk
from livescale.services.host.packed_file import CHUNK_BYTES
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


def read_raw(packed: Path, scratch: Sequence[memoryview]) -> float:
    """Seconds that the disk takes: direct reads into `scratch`, one at a time into each, and checked by nobody.

    Raises BenchFailed.
    """
    try:
        file = os.open(packed, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        raise BenchFailed(f"{packed.parent}: no direct reads there ({error.strerror}); run this on a disk") from error

    def read(number: int) -> None:
        for offset in range(number * CHUNK_BYTES, os.fstat(file).st_size, len(scratch) * CHUNK_BYTES):
            os.preadv(file, [scratch[number]], offset)

    began = time.perf_counter()
    try:
        with ThreadPoolExecutor(len(scratch)) as threads:
            list(threads.map(read, range(len(scratch))))
    finally:
        os.close(file)
    return time.perf_counter() - began


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
