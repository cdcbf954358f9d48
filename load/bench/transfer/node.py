"""A process that moves parameters for a bench: it has an arena and a link, and is told over a pipe what to do.

What goes over the pipe is msgpack, checked like every message: `Connection.send` and `recv` would pickle.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection

import msgspec
import numpy as np
import uvloop
import xxhash

from livescale.load.bench.transfer.mover import Mover
from livescale.load.bench.transfer.node_messages import (
    Failed,
    Hello,
    Job,
    Read,
    end_with_parent,
    tell,
)
from livescale.shared.links.contract import LinkError
from livescale.shared.links.open import open_link
from livescale.shared.links.process_memory import address_of
from livescale.shared.memory.arena import Arena, SharedBlocks, placed_bytes
from livescale.shared.messages.message import Message
from livescale.shared.messages.parameters import Block
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.transfer.memory_export import open_memory_export, shares_memory


class Outfit(Message, frozen=True):
    """What a process of the bench has: its link's settings, a set of blocks, filled or not, a second set to copy
    into or not. `cores`: where it runs, if not anywhere."""

    settings: LinkSettings
    sizes: list[int]
    is_source: bool
    has_spare: bool
    cores: tuple[int, ...] = ()


def main(descriptor: int) -> None:
    """Do one job after the other until the pipe brings nothing, or ends."""
    end_with_parent()
    with Connection(descriptor) as pipe, suppress(EOFError, KeyboardInterrupt):
        try:
            uvloop.run(_serve(pipe, msgspec.msgpack.decode(pipe.recv_bytes(), type=Outfit)))
        except LinkError as error:
            tell(pipe, Failed(str(error)))


async def _serve(pipe: Connection, outfit: Outfit) -> None:
    if outfit.cores:
        os.sched_setaffinity(0, outfit.cores)
    arena = Arena(placed_bytes(outfit.sizes) * (2 if outfit.has_spare else 1))
    is_shared = outfit.is_source and shares_memory(outfit.settings)
    memory = SharedBlocks(outfit.sizes) if is_shared else arena.place(outfit.sizes)
    spare = arena.place(outfit.sizes) if outfit.has_spare else []
    blocks = [fill(index, view) for index, view in enumerate(memory)] if outfit.is_source else []
    link = await open_link(outfit.settings)
    memory_export = open_memory_export(outfit.settings, link.address)
    with ThreadPoolExecutor(1) as executor:
        mover = Mover(link, memory_export, memory, spare, executor)
        reads = Read(os.getpid(), tuple(map(address_of, memory))) if blocks else None
        tell(pipe, Hello(link.address, tuple(blocks), reads))
        while data := await asyncio.to_thread(pipe.recv_bytes):
            tell(pipe, await mover.timed(msgspec.msgpack.decode(data, type=Job)))
    if memory_export is not None:
        await memory_export.close()
    await link.close()


def fill(index: int, view: memoryview) -> Block:
    """Fill a block with bytes that follow from its index, and describe it."""
    view[:] = np.random.default_rng(index).bytes(view.nbytes)
    checksum = xxhash.xxh3_64_intdigest(view)
    return Block(index=index, name=f"block.{index}", size_bytes=view.nbytes, checksum=checksum, tensors=[])
