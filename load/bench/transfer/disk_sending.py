"""Sends a model to a receiver in this process while it is read from a disk."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.transfer.disk_reads import DTYPE, read_model
from livescale.services.host.stored import open_stored
from livescale.shared.links.contract import Link
from livescale.shared.links.open import open_link
from livescale.shared.messages.transfers import Inflow, Node, Outflow, Send
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.transfer.chunks import MAX_CHUNK_BYTES
from livescale.shared.transfer.flow_end import ModelCopy, ReadyBlocks
from livescale.shared.transfer.receiver import BlockReceiver, Events
from livescale.shared.transfer.sender import BlockSender

SECONDS = 60.0


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
