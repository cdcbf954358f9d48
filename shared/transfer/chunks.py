"""Chunks, the unit in which blocks are moved: their sizes, their tags, and which of them are here. Pure."""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

MIB = 1 << 20
MAX_CHUNK_BYTES = 16 * MIB
CHUNK_SECONDS = 0.01

TICKET_BITS, BLOCK_BITS, CHUNK_BITS = 24, 16, 24
TICKETS = 1 << TICKET_BITS  # and they begin again


def first_ticket(wall: float) -> int:
    """Where a process begins to count its tickets, by the wall's time: one that is started again goes on with others,
    as none ever gives a thousand a second."""
    return int(wall * 1000)


def chunk_bytes_for(rate: float) -> int:
    """Chunk size for a link of `rate` bytes a second (0: unshaped): 10 ms of it, whole MiB between 1 and 16.

    Small chunks keep a chain of R receivers near M/B + (R - 1) * chunk/B; large ones reach the speed of memcpy.
    """
    if rate <= 0:
        return MAX_CHUNK_BYTES
    return min(max(round(rate * CHUNK_SECONDS / MIB), 1) * MIB, MAX_CHUNK_BYTES)


def chunk_tag(ticket: int, block: int, chunk: int) -> int:
    """The 64-bit tag of a chunk. Raises ValueError where a part does not fit its bits."""
    for name, value, bits in (
        ("ticket", ticket, TICKET_BITS),
        ("block", block, BLOCK_BITS),
        ("chunk", chunk, CHUNK_BITS),
    ):
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{name} {value} does not fit {bits} bits of a tag")
    return (ticket << BLOCK_BITS | block) << CHUNK_BITS | chunk


class Chunk(msgspec.Struct, frozen=True, gc=False):  # there are thousands, made before the first byte is asked for
    """Bytes [offset, offset + size) of a block. `number` counts over all blocks, `index` within the block."""

    number: int
    block: int
    index: int
    offset: int
    size: int


def cut(sizes: Sequence[int], chunk_bytes: int) -> tuple[Chunk, ...]:
    """Cut blocks of these sizes into chunks, in the order of sending. Raises ValueError."""
    if chunk_bytes <= 0:
        raise ValueError(f"chunk_bytes must be positive, not {chunk_bytes}")
    return _cut(tuple(sizes), chunk_bytes)


@lru_cache(maxsize=64)
def _cut(sizes: tuple[int, ...], chunk_bytes: int) -> tuple[Chunk, ...]:
    """Chunks are never changed, so copies of a model share them."""
    spans = ((block, offset) for block, size in enumerate(sizes) for offset in range(0, size, chunk_bytes))
    return tuple(
        Chunk(number, block, offset // chunk_bytes, offset, min(chunk_bytes, sizes[block] - offset))
        for number, (block, offset) in enumerate(spans)
    )


def select(chunks: Sequence[Chunk], blocks: Sequence[int], lane: int, lanes: int) -> tuple[Chunk, ...]:
    """The chunks that a flow brings: of `blocks`, in their order, every `lanes`-th chunk from the `lane`-th on.

    Without `blocks` it is all of them. Raises ValueError for a block or lane that is not there.
    """
    if not lane < lanes:
        raise ValueError(f"lane is {lane}, but there are {lanes} lanes from 0 on")
    by_block: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        by_block.setdefault(chunk.block, []).append(chunk)
    missing = [block for block in blocks if block not in by_block]
    if missing:
        raise ValueError(f"blocks: there is no block {missing[0]}")
    own = (by_block[block] for block in blocks or by_block)
    return tuple(chunk for block in own for chunk in block if chunk.number % lanes == lane)


class ChunkMap:
    """Which chunks of a model are here: a flag for each chunk, and a count for each block."""

    def __init__(self, chunks: Sequence[Chunk], blocks: int) -> None:
        self._chunks = chunks
        self._here = bytearray(len(chunks))
        self._missing = [0] * blocks
        for chunk in chunks:
            self._missing[chunk.block] += 1

    def add(self, chunk: Chunk) -> None:
        """Note that a chunk is here. Raises ValueError where it was here already."""
        if self._here[chunk.number]:
            raise ValueError(f"chunk {chunk.index} of block {chunk.block} came twice")
        self._here[chunk.number] = 1
        self._missing[chunk.block] -= 1

    def forget(self, block: int) -> None:
        """Note that none of the block's chunks is here any more."""
        for chunk in self._chunks:
            if chunk.block == block:
                self._missing[block] += self._here[chunk.number]
                self._here[chunk.number] = 0

    def missing(self) -> tuple[Chunk, ...]:
        return tuple(chunk for chunk in self._chunks if not self._here[chunk.number])

    def has(self, chunk: Chunk) -> bool:
        return bool(self._here[chunk.number])

    def is_whole(self, block: int) -> bool:
        return self._missing[block] == 0
