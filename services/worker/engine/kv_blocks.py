"""Who owns which block of the KV cache. A block has one owner at most, and an owner one contiguous stretch."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise

from shared.invariants import check


class KvBlocks:
    """Blocks `0 .. total-1`, given out first-fit. Contiguous, so that attention on a CPU reads without a gather."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free: list[range] = [range(total)] if total else []  # ascending, never adjacent
        self._owned: dict[str, range] = {}

    @property
    def used(self) -> int:
        return sum(len(blocks) for blocks in self._owned.values())

    def allocate(self, owner: str, count: int) -> range | None:
        """`count` blocks for `owner`, or None while no stretch is long enough. An owner is served once."""
        if owner in self._owned:
            raise ValueError(f"{owner} already owns blocks {self._owned[owner]}")
        if count < 1:
            raise ValueError(f"{owner} asks for {count} blocks; one is the least")
        for place, stretch in enumerate(self._free):
            if len(stretch) >= count:
                rest = stretch[count:]
                self._free[place : place + 1] = [rest] if rest else []
                self._owned[owner] = stretch[:count]
                return stretch[:count]
        return None

    @property
    def owners(self) -> frozenset[str]:
        return frozenset(self._owned)

    def owned(self, owner: str) -> range:
        """The blocks of `owner`. Raises KeyError where it has none."""
        return self._owned[owner]

    def free(self, owner: str) -> None:
        """Take back all blocks of `owner`. Raises KeyError where it has none."""
        blocks = self._owned.pop(owner)
        place = bisect_left(self._free, blocks.start, key=lambda stretch: stretch.start)
        before = self._free[place - 1 : place]
        after = self._free[place : place + 1]
        if before and before[0].stop == blocks.start:
            blocks = range(before[0].start, blocks.stop)
            place -= 1
        else:
            before = []
        if after and after[0].start == blocks.stop:
            blocks = range(blocks.start, after[0].stop)
        else:
            after = []
        self._free[place : place + len(before) + len(after)] = [blocks]

    def check_invariants(self) -> None:
        """Every block is free or has one owner. Raises InvariantBroken."""
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        stretches = [("free", stretch) for stretch in self._free] + list(self._owned.items())
        stretches.sort(key=lambda one: one[1].start)
        edges = [("the start", range(0)), *stretches, ("the end", range(self.total, self.total))]
        for (owner, before), (next_owner, after) in pairwise(edges):
            if before.stop != after.start:
                yield f"KV blocks: {owner} ends at {before.stop}, {next_owner} begins at {after.start}"
            if owner == next_owner == "free":
                yield f"KV blocks: free stretches meet at {after.start}"
        yield from (f"KV blocks: {owner} owns none" for owner, blocks in self._owned.items() if not blocks)
