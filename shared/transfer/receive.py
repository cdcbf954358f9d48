"""Receiving: chunks land where they stay, are passed on as they arrive, and blocks are verified when whole."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from dataclasses import dataclass

import xxhash

from shared.links.contract import Link, LinkError
from shared.messages.parameters import Block
from shared.messages.scaling import Node
from shared.transfer.arrivals import Arrivals
from shared.transfer.chunks import Chunk
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
    arrivals: Arrivals | None = None,
) -> None:
    """A target's part: fill `part.memory` from `upstream`, forwarding to `part.downstream` chunk by chunk.

    `on_block(index)` is called in order, once the block is whole and its checksum (computed in `executor`) right.
    A lost child is told to `on_lost` and does not stop us. With the `arrivals` of an earlier transfer that broke off,
    only what is missing comes. Returns when every block is verified and every child has everything. Raises
    TransferFailed: upstream gone or too late, or a wrong checksum, naming the block, which then is missing again.
    """
    for block, view in zip(blocks, part.memory, strict=True):
        if block.size_bytes != view.nbytes:
            raise ValueError(f"block {block.index} has {block.size_bytes} bytes, its memory {view.nbytes}")
    here = Arrivals(part) if arrivals is None else arrivals
    verifier = _Verifier(part, upstream, blocks, executor, here)
    await verifier.forget_damaged()
    peer = await part.connect(link, upstream)
    pace = Pace(part.patience, RECEIVES)

    async def lane(chunks: tuple[Chunk, ...]) -> None:
        for chunk in chunks:
            await peer.receive(part.tag(chunk), part.buffer(chunk), timeout=pace.timeout(chunk))
            pace.moved(asyncio.get_running_loop().time())
            if here.received_bytes == 0:
                on_first_byte()
            here.add(chunk)

    async def fetch() -> None:
        missing = here.missing()
        await part.ask(peer, missing)
        await together(*(lane(missing[start::RECEIVES]) for start in range(RECEIVES)))

    try:
        async with AsyncExitStack() as undo:
            undo.push_async_callback(peer.close)  # upstream learns at once that we take nothing more
            children = (feed(link, part, child, here.here, on_lost) for child in part.downstream)
            await together(verifier.run(on_block), fetch(), *children)
    except LinkError as error:
        raise TransferFailed(part.node, upstream.id, str(error)) from error


@dataclass(frozen=True)
class _Verifier:
    """Checksums of what arrives."""

    part: Part
    upstream: Node
    blocks: Sequence[Block]
    executor: Executor
    here: Arrivals

    async def run(self, on_block: Callable[[int], None]) -> None:
        """Verify block by block, in order. Raises TransferFailed."""
        while self.here.verified < len(self.blocks):
            number = self.here.verified
            await self.here.whole(number)
            block, found = self.blocks[number], await self._checksum(number)
            if found != block.checksum:
                self.here.forget(number)
                reason = f"block {block.index} ({block.name}) has checksum {found:#x}, expected {block.checksum:#x}"
                raise TransferFailed(self.part.node, self.upstream.id, reason)
            self.here.verified += 1
            on_block(block.index)

    async def forget_damaged(self) -> None:
        """What came whole from an upstream that was found to damage blocks need not fail one by one."""
        for number in range(self.here.verified, len(self.blocks)):
            if self.here.is_whole(number) and await self._checksum(number) != self.blocks[number].checksum:
                self.here.forget(number)

    async def _checksum(self, number: int) -> int:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.executor, xxhash.xxh3_64_intdigest, self.part.memory[number])
