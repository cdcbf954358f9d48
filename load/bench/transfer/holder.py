"""A bench process that holds a model: in its memory, or on a disk from which it reads it first."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import numpy as np
import uvloop

from livescale.load.bench.transfer.disk_model import drop_cached
from livescale.load.bench.transfer.mover import Mover
from livescale.load.bench.transfer.node_messages import Done, Failed, Hello, Share, end_with_parent, tell
from livescale.services.host.disk import ThreadDisk, allocate
from livescale.services.host.stored import Stored, open_stored
from livescale.shared.links.contract import Link, LinkError
from livescale.shared.links.open import open_link
from livescale.shared.messages.message import Message
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import DType
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.transfer.flow_end import ReadyBlocks

DTYPE: DType = "bfloat16"


class Holder(Message, frozen=True):
    """What the process is made with: its link, and the directory of a packed model."""

    settings: LinkSettings
    directory: str


class Cold(Message, frozen=True):
    """A share in a plan whose blocks are first read from disk, at most at a given rate in bytes/s, which is shaped as
    links are."""

    share: Share
    disk_rate: float


def main(descriptor: int) -> None:
    """Do one job after the other until the pipe brings nothing, or ends."""
    end_with_parent()
    with Connection(descriptor) as pipe, suppress(EOFError, KeyboardInterrupt):
        try:
            uvloop.run(_serve(pipe, msgspec.msgpack.decode(pipe.recv_bytes(), type=Holder)))
        except LinkError as error:
            tell(pipe, Failed(str(error)))


async def _serve(pipe: Connection, holder: Holder) -> None:
    directory = Path(holder.directory)
    with closing(open_stored(directory, DTYPE, keep=True)) as stored:
        memory, manifest = allocate(stored.sizes), stored.manifest
        for index, block in enumerate(memory):
            stored.read_block(index, block)
    assert manifest is not None
    link = await open_link(holder.settings)
    with ThreadPoolExecutor(1) as executor:
        mover = Mover(link, None, memory, [], executor)
        tell(pipe, Hello(link.address, tuple(manifest.blocks)))
        while data := await asyncio.to_thread(pipe.recv_bytes):
            job: Share | Cold = msgspec.msgpack.decode(data, type=Share | Cold)
            if isinstance(job, Cold):
                tell(pipe, await _start_cold(job, link, memory, directory))
            else:
                tell(pipe, await mover.timed(job))
    await link.close()


async def _start_cold(job: Cold, link: Link, memory: list[memoryview], directory: Path) -> Done | Failed:
    """With nothing of the model in memory or in the page cache. A host that is up has touched its memory before."""
    drop_cached(directory)
    for view in memory:
        np.frombuffer(view, np.uint8)[:] = 0
    disk, ready = ThreadDisk(keep=True), ReadyBlocks()
    stored, began = await disk.open(ModelSpec(name="bench", path=str(directory), dtype=DTYPE)), time.monotonic()
    try:
        with ThreadPoolExecutor(1) as executor:
            mover = Mover(link, None, memory, [], executor, lambda chunk: ready.wait_ready(chunk.block))
            done, _ = await asyncio.gather(mover.timed(job.share), _read(disk, stored, memory, job, ready))
    finally:
        stored.close()
        await disk.close()
    return done if isinstance(done, Failed) else msgspec.structs.replace(done, began=began)


async def _read(disk: ThreadDisk, stored: Stored, memory: Sequence[memoryview], job: Cold, ready: ReadyBlocks) -> None:
    """In the order in which the blocks are to be sent."""
    now = asyncio.get_running_loop().time
    order = job.share.outflows[0].blocks or list(range(len(memory)))
    due, indexes = now(), iter(order)
    async with aclosing(disk.read(stored, {index: memory[index] for index in order})) as read:
        async for _ in read:
            index = next(indexes)
            due += memory[index].nbytes / job.disk_rate
            await asyncio.sleep(due - now())
            ready.add(index)
