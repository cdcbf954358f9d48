"""Receiving: chunks land where they stay, are passed on as they arrive, and blocks are verified when whole."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack

import xxhash

from shared.links.contract import Link, LinkError
from shared.messages.parameters import Block
from shared.messages.scaling import Node
from shared.transfer.chunks import Chunk, ChunkMap
from shared.transfer.part import Part, TransferFailed, together
from shared.transfer.patience import Pace
from shared.transfer.send import feed

RECEIVES = 4  # posted ahead, so that the sender never waits for us


async def receive_blocks(
    link: Link,
    part: Part,
    upstream: Node,
    blocks: Sequence[Block],
    executor: Executor,
    *,
    on_first_byte: Callable[[], None],
    on_block: Callable[[int], None],
    on_lost: Callable[[TransferFailed], None],
) -> None:
    """A target's part: fill `part.memory` from `upstream`, forwarding to `part.downstream` chunk by chunk.

    `on_block(index)` is called in order, once the block is whole and its checksum (computed in `executor`) right.
    A lost child is told to `on_lost` and does not stop us. Returns when every block is verified and every child
    has everything. Raises TransferFailed: upstream gone or too late, or a wrong checksum, naming the block.
    """
    for block, view in zip(blocks, part.memory, strict=True):
        if block.size_bytes != view.nbytes:
            raise ValueError(f"block {block.index} has {block.size_bytes} bytes, its memory {view.nbytes}")
    peer = await part.connect(link, upstream)
    arrivals = Arrivals(part, on_first_byte)
    pace = Pace(part.patience, RECEIVES)

    async def lane(chunks: tuple[Chunk, ...]) -> None:
        for chunk in chunks:
            await peer.receive(part.tag(chunk), part.buffer(chunk), timeout=pace.timeout(chunk))
            pace.moved(asyncio.get_running_loop().time())
            arrivals.add(chunk)

    try:
        async with AsyncExitStack() as undo:
            undo.push_async_callback(peer.close)  # upstream learns at once that we take nothing more
            await together(
                _verify(part, upstream, blocks, executor, arrivals, on_block),
                *(lane(part.chunks[start::RECEIVES]) for start in range(RECEIVES)),
                *(feed(link, part, child, arrivals.here, on_lost) for child in part.downstream),
            )
            undo.pop_all()
    except LinkError as error:
        raise TransferFailed(part.node, upstream.id, str(error)) from error


async def _verify(
    part: Part,
    upstream: Node,
    blocks: Sequence[Block],
    executor: Executor,
    arrivals: "Arrivals",
    on_block: Callable[[int], None],
) -> None:
    loop = asyncio.get_running_loop()
    for number, (block, view) in enumerate(zip(blocks, part.memory, strict=True)):
        await arrivals.whole(number)
        found = await loop.run_in_executor(executor, xxhash.xxh3_64_intdigest, view)
        if found != block.checksum:
            reason = f"block {block.index} ({block.name}) has checksum {found:#x}, expected {block.checksum:#x}"
            raise TransferFailed(part.node, upstream.id, reason)
        on_block(block.index)


class Arrivals:
    """The chunks that are here, and those who wait for one or for a whole block."""

    def __init__(self, part: Part, on_first: Callable[[], None]) -> None:
        self._map = ChunkMap(part.chunks, len(part.memory))
        self._on_first: Callable[[], None] | None = on_first
        self._changed = asyncio.Event()

    def add(self, chunk: Chunk) -> None:
        if self._on_first is not None:
            self._on_first()
            self._on_first = None
        self._map.add(chunk)
        self._changed.set()
        self._changed = asyncio.Event()

    async def here(self, chunk: Chunk) -> None:
        while not self._map.has(chunk):
            await self._changed.wait()

    async def whole(self, block: int) -> None:
        while not self._map.is_whole(block):
            await self._changed.wait()
