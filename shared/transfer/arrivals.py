"""What of a model is here, however many flows it took to come, and the checksum that shows it to be right."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable

import xxhash

from livescale.shared.links.contract import View
from livescale.shared.transfer.chunks import Chunk, ChunkMap
from livescale.shared.transfer.flow_end import ModelCopy
from livescale.shared.transfer.waiting import BlocksLost, Changes


def checksum(view: View) -> int:
    """XXH3 of its bytes. To be called away from the event loop: it reads all of them."""
    if isinstance(view, memoryview):
        return xxhash.xxh3_64_intdigest(view)
    digest = xxhash.xxh3_64()
    for piece in view.pieces():
        digest.update(piece)
    return digest.intdigest()


class ChunkArrivals:
    """The chunks that are here, who brought them, and those who wait for one. Outlives a flow that broke off."""

    def __init__(self, copy: ModelCopy) -> None:
        self._map = ChunkMap(copy.chunks, len(copy.memory))
        self._whole: deque[int] = deque()  # and not verified
        self._brought: defaultdict[int, set[int]] = defaultdict(set)  # tickets, by block
        self._claimed: dict[int, int] = {}  # chunk -> ticket of the flow that was asked for it
        self._changed = Changes()
        self._lost: str | None = None
        self._checking = False
        self._chunks = copy.chunks
        self.received_bytes = 0
        self.shared_bytes = 0
        self.verified: set[int] = set()
        self.damaged: Counter[int] = Counter()  # how often a block came with a wrong checksum

    def claim(self, chunks: Iterable[Chunk], ticket: int) -> tuple[Chunk, ...]:
        """Those of `chunks` that are neither here nor asked for elsewhere: the flow `ticket` is going to bring them."""
        free = tuple(chunk for chunk in chunks if not self._map.has(chunk) and chunk.number not in self._claimed)
        self._claimed.update((chunk.number, ticket) for chunk in free)
        return free

    def unclaim(self, ticket: int) -> None:
        """The flow has ended: what it did not bring may be asked for elsewhere."""
        self._claimed = {number: by for number, by in self._claimed.items() if by != ticket}

    def begun_blocks(self) -> set[int]:
        """Those of which something has come, is asked for, or came damaged."""
        begun = (chunk for chunk in self._chunks if self._map.has(chunk) or chunk.number in self._claimed)
        return {chunk.block for chunk in begun} | self.damaged.keys()

    def add(self, chunk: Chunk, ticket: int, shared: bool = False) -> None:
        """It came over the link, or is here as our memory is `shared`."""
        self._map.add(chunk)
        self.received_bytes += 0 if shared else chunk.size
        self.shared_bytes += chunk.size if shared else 0
        self._brought[chunk.block].add(ticket)
        if self._map.is_whole(chunk.block):
            self._whole.append(chunk.block)
        self._changed.tell()

    def forget(self, block: int) -> set[int]:
        """It came damaged, and has to come again. The tickets of the flows that brought it."""
        self._map.forget(block)
        self.damaged[block] += 1
        self._checking = False
        self._changed.tell()
        return self._brought.pop(block)

    def verify(self, block: int) -> None:
        self.verified.add(block)
        self._checking = False
        self._changed.tell()

    def lose(self, reason: str) -> None:
        """Nothing will come any more."""
        self._lost = reason
        self._changed.tell()

    @property
    def begun(self) -> bool:
        return self.received_bytes + self.shared_bytes > 0

    @property
    def settled(self) -> bool:
        """Whether no block is whole and not yet known to be right or damaged."""
        return not self._whole and not self._checking

    async def settle(self) -> None:
        while not self.settled:
            await self._changed.wait()

    async def here(self, chunk: Chunk) -> None:
        """Raises BlocksLost."""
        while not self._map.has(chunk):
            if self._lost is not None:
                raise BlocksLost(f"block {chunk.block}: {self._lost}")
            await self._changed.wait()

    async def whole(self) -> int:
        """The next block to be checked: `verify` it, or `forget` it."""
        while not self._whole:
            await self._changed.wait()
        self._checking = True
        return self._whole.popleft()
