"""What of a model is here, however many transfers it took to come."""

import asyncio
from collections import Counter

from shared.transfer.chunks import Chunk, ChunkMap
from shared.transfer.part import Part


class Arrivals:
    """The chunks that are here, and those who wait for one or for a whole block. Outlives a transfer that broke off."""

    def __init__(self, part: Part) -> None:
        self._map = ChunkMap(part.chunks, len(part.memory))
        self._changed = asyncio.Event()
        self.received_bytes = 0
        self.verified = 0  # so many blocks, in order, are whole and their checksums right
        self.damaged: Counter[int] = Counter()  # how often a block came with a wrong checksum

    def add(self, chunk: Chunk) -> None:
        self._map.add(chunk)
        self.received_bytes += chunk.size
        self._changed.set()
        self._changed = asyncio.Event()

    def forget(self, block: int) -> None:
        """It came damaged, and has to come again."""
        self._map.forget(block)
        self.damaged[block] += 1

    def missing(self) -> tuple[Chunk, ...]:
        return self._map.missing()

    def is_whole(self, block: int) -> bool:
        return self._map.is_whole(block)

    async def here(self, chunk: Chunk) -> None:
        while not self._map.has(chunk):
            await self._changed.wait()

    async def whole(self, block: int) -> None:
        while not self._map.is_whole(block):
            await self._changed.wait()
