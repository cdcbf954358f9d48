"""Which chunks of a model are here, over however many flows they came, and what their blocks' checksums are.

A checksum is computed while the bytes come, as those that have just come are still in the cache.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable

import xxhash

from livescale.shared.links.contract import View, checksum
from livescale.shared.runtime.waiting import Changes
from livescale.shared.transfer.chunks import Chunk, ChunkMap
from livescale.shared.transfer.flow_end import BlocksLost, ModelCopy


class _Prefix:
    """The hash of the first `size_bytes` of a block, as they were written."""

    def __init__(self) -> None:
        self.hash = xxhash.xxh3_64()
        self.size_bytes = 0


class BlockDigest:
    """The checksum of a block: of its first bytes as far as they came in order, and of the others once it is whole."""

    def __init__(self) -> None:
        self._prefix = _Prefix()

    def write(self, offset: int) -> Callable[[memoryview], None]:
        """Note that bytes are going to be written from `offset` on.

        Returns what is to be called with each piece of them, in their order, perhaps in a thread. The same bytes are
        not written twice at a time.
        """
        if offset < self._prefix.size_bytes:
            self._prefix = _Prefix()  # who still writes further on keeps the one before, which no longer counts
        prefix, here = self._prefix, offset

        def add(piece: memoryview) -> None:
            nonlocal here
            if here == prefix.size_bytes:
                prefix.hash.update(piece)
                prefix.size_bytes += piece.nbytes
            here += piece.nbytes

        return add

    def is_known(self, view: View) -> bool:
        """Whether all bytes of the block, which are in `view`, are hashed."""
        return self._prefix.size_bytes == view.nbytes

    def of(self, view: View) -> int:
        """The checksum of the block, whose bytes are all in `view`.

        Where it is not known, call it in a thread: it takes milliseconds.
        """
        prefix = self._prefix
        if not prefix.size_bytes:
            return checksum(view)
        assert isinstance(view, memoryview)
        prefix.hash.update(view[prefix.size_bytes :])
        prefix.size_bytes = view.nbytes
        return prefix.hash.intdigest()


class ChunkArrivals:
    """The chunks of a model that are here, which flows brought them, and the tasks that wait for one.

    A flow that breaks off leaves what it brought.
    """

    def __init__(self, copy: ModelCopy) -> None:
        self._map = ChunkMap(copy.chunks, len(copy.memory))
        self._whole: deque[int] = deque()  # and not verified
        self._brought: defaultdict[int, set[int]] = defaultdict(set)  # tickets, by block
        self._claimed: dict[int, int] = {}  # chunk -> ticket of the flow that was asked for it
        self._coming: dict[int, Changes] = {}  # of the chunks that tasks wait for, by number
        self._changed = Changes()  # of blocks: one is whole, verified or forgotten
        self._lost: str | None = None
        self._checking = False
        self._chunks = copy.chunks
        self.received_bytes = 0
        self.shared_bytes = 0
        self.verified: set[int] = set()
        self.damaged: Counter[int] = Counter()  # how often a block came with a wrong checksum

    def claim(self, chunks: Iterable[Chunk], ticket: int) -> tuple[Chunk, ...]:
        """Have the flow `ticket` bring those of `chunks` that are neither here nor asked for along another flow."""
        free = tuple(chunk for chunk in chunks if not self._map.has(chunk) and chunk.number not in self._claimed)
        self._claimed.update((chunk.number, ticket) for chunk in free)
        return free

    def unclaim(self, ticket: int) -> None:
        """Forget the claims of a flow that has ended: another flow may bring what it did not."""
        self._claimed = {number: by for number, by in self._claimed.items() if by != ticket}

    def begun_blocks(self) -> set[int]:
        """The blocks of which a chunk has come, is asked for, or came damaged."""
        begun = (chunk for chunk in self._chunks if self._map.has(chunk) or chunk.number in self._claimed)
        return {chunk.block for chunk in begun} | self.damaged.keys()

    def keep(self) -> None:
        """Note that all blocks are here and verified, because nothing was written since they were."""
        for chunk in self._chunks:
            self._map.add(chunk)
            self.verified.add(chunk.block)
        self._tell_all()

    def add(self, chunk: Chunk, ticket: int, shared: bool = False) -> None:
        """Note that a chunk is here: it came over the link, or its memory is `shared` with the sender."""
        self._map.add(chunk)
        self.received_bytes += 0 if shared else chunk.size
        self.shared_bytes += chunk.size if shared else 0
        self._brought[chunk.block].add(ticket)
        if self._map.is_whole(chunk.block):
            self._whole.append(chunk.block)
            self._changed.tell()
        # Those that wait for other chunks sleep on: there are many, and chunks come by the thousand.
        if (coming := self._coming.pop(chunk.number, None)) is not None:
            coming.tell()

    def forget(self, block: int) -> set[int]:
        """Forget a block that came damaged, so that it comes again.

        Returns the tickets of the flows that brought it.
        """
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
        """Tell all that wait that nothing will come any more, and why."""
        self._lost = reason
        self._tell_all()

    @property
    def begun(self) -> bool:
        return self.received_bytes + self.shared_bytes > 0

    @property
    def settled(self) -> bool:
        """Whether every block that is whole has been checked."""
        return not self._whole and not self._checking

    async def settle(self) -> None:
        while not self.settled:
            await self._changed.wait()

    async def here(self, chunk: Chunk) -> None:
        """Return once the chunk is here. Raises BlocksLost where it will not come."""
        while not self._map.has(chunk):
            if self._lost is not None:
                raise BlocksLost(f"block {chunk.block}: {self._lost}")
            await self._coming.setdefault(chunk.number, Changes()).wait()

    async def whole(self) -> int:
        """Wait for the next block that is whole and unchecked. The caller is to `verify` or to `forget` it."""
        while not self._whole:
            await self._changed.wait()
        self._checking = True
        return self._whole.popleft()

    def _tell_all(self) -> None:
        """Wake whoever waits, whatever for."""
        coming, self._coming = self._coming, {}
        for changes in (*coming.values(), self._changed):
            changes.tell()
