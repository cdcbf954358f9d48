"""The owners of the blocks of the KV cache. A block has at most one owner, an owner one contiguous stretch. Pure.

Blocks are contiguous so that attention on a CPU reads without a gather; so a stretch can only grow into the blocks
behind it. While there is room, a newcomer is placed where all that it may ever need is free and blocks no other owner.

A cache in which every owner has such a place is mostly empty, since requests end long before their maximum. So blocks
that an owner may grow into and does not own yet are only reserved softly. A newcomer that finds no place of its own
starts in the middle of the longest soft stretch. When two stretches meet, the scheduler says which one gives way.
Blocks are never moved: that would save the recomputation of the few that meet, but every engine would have to copy
blocks during steps.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from livescale.shared.policy.invariants import check

# A newcomer without a place of its own must be able to grow by 1 / GROWTH of what it has before two stretches meet. So
# what may have to be computed again stays in proportion to what an early start gains.
GROWTH = 4


@dataclass
class Stretch:
    """The blocks of `owner`, which may grow until it owns all before block `reach`."""

    owner: str
    blocks: range
    reach: int


@dataclass(frozen=True)
class FreePlace:
    """Where a newcomer may start, and by how many blocks it and its neighbours can grow until two meet."""

    start: int
    room: int


class BlockManager:
    """The blocks `0` to `total - 1`. Owners are placed, grow block by block, and are freed."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._stretches: list[Stretch] = []  # ascending
        self._of: dict[str, Stretch] = {}
        self._had = bytearray(total)  # by block, whether it ever had an owner, or something was put there

    @property
    def used(self) -> int:
        return sum(len(stretch.blocks) for stretch in self._stretches)

    @property
    def owners(self) -> frozenset[str]:
        return frozenset(self._of)

    @property
    def largest_gap(self) -> int:
        """The largest number of blocks that a newcomer could start with now."""
        return max(len(gap) for gap, _ in self._gaps())

    def unowned(self) -> Iterator[range]:
        """Yield the ranges of blocks without an owner, ascending."""
        return (gap for gap, _ in self._gaps())

    def owned(self, owner: str) -> range:
        """The blocks of `owner`. Raises KeyError where it has none."""
        return self._of[owner].blocks

    def place(self, owner: str, count: int, most: int) -> range | None:
        """Give `owner` `count` blocks, of which it may come to need `most`. None while there is no room to start.

        It gets the first place that is all its own; failing that, the place where most can be gained before two meet.
        Raises ValueError for an owner that has blocks already, and for a count that is not between 1 and `most`.
        """
        if owner in self._of:
            raise ValueError(f"{owner} already owns blocks {self._of[owner].blocks}")
        if not 1 <= count <= most:
            raise ValueError(f"{owner} asks for {count} of {most} blocks; 1 is the least")
        places = [self._place_in(gap, reach, count, most) for gap, reach in self._gaps() if len(gap) >= count]
        best = max(places, key=lambda place: place.room, default=None)
        if best is None or best.room * GROWTH < count:
            return None
        return self._own(owner, range(best.start, best.start + count), most)

    def claim(self, owner: str, blocks: range, most: int) -> range | None:
        """Give `owner` exactly these blocks, with what lies in them.

        None where a block has or had an owner, or anything else was put there.
        """
        if blocks.stop > self.total or any(self._had[blocks.start : blocks.stop]):
            return None
        return self._own(owner, blocks, most)

    def rename(self, owner: str, name: str) -> None:
        """Have another owner, `name`, own the blocks of `owner`.

        Raises KeyError where it has none, and ValueError where the other has some.
        """
        if name in self._of:
            raise ValueError(f"{name} already owns blocks {self._of[name].blocks}")
        stretch = self._of[name] = self._of.pop(owner)
        stretch.owner = name

    def put(self, blocks: range) -> None:
        """Note that content without an owner lies in these blocks: what lay there before can no longer be claimed."""
        self._had[blocks.start : blocks.stop] = bytes((True,)) * len(blocks)

    def grow(self, owner: str) -> str | None:
        """Give `owner` one block more and return None.

        Where another owner is in the way, nothing changes and its name is returned; at the end of the cache, `owner`
        itself.
        """
        stretch = self._of[owner]
        stop = stretch.blocks.stop
        after = self._index_after(stretch.blocks.start)
        if after < len(self._stretches) and self._stretches[after].blocks.start == stop:
            return self._stretches[after].owner
        if stop == self.total:
            return owner
        stretch.blocks = range(stretch.blocks.start, stop + 1)
        self._had[stop] = True
        return None

    def free(self, owner: str) -> None:
        """Take back all blocks of `owner`. Raises KeyError where it has none."""
        stretch = self._of.pop(owner)
        del self._stretches[self._index_after(stretch.blocks.start) - 1]

    def _own(self, owner: str, blocks: range, most: int) -> range:
        stretch = self._of[owner] = Stretch(owner, blocks, blocks.start + most)
        self.put(blocks)
        self._stretches.insert(self._index_after(blocks.start), stretch)
        return blocks

    def _index_after(self, start: int) -> int:
        return bisect_right(self._stretches, start, key=lambda stretch: stretch.blocks.start)

    def _gaps(self) -> Iterator[tuple[range, int]]:
        """Yield the ranges of blocks without an owner, each with the end up to which an owner before it may grow."""
        begin = reach = 0
        for stretch in self._stretches:
            yield range(begin, stretch.blocks.start), reach
            begin, reach = stretch.blocks.stop, max(reach, stretch.reach)
        yield range(begin, self.total), reach

    def _place_in(self, gap: range, reach: int, count: int, most: int) -> FreePlace:
        """Choose a place in a gap: behind what may grow from before, or in the middle where that leaves too little
        room."""
        reach = min(max(reach, gap.start), gap.stop)
        middle = gap.start + (len(gap) - count) // 2
        start = min(reach, max(middle, gap.stop - most))
        before = start - gap.start if start < reach else self.total
        after = gap.stop - start - count if gap.stop < start + most else self.total
        return FreePlace(start, min(before, after))

    def check_invariants(self) -> None:
        """Check that every block has at most one owner, and no owner more than it may need. Raises InvariantBroken."""
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        if {stretch.owner: id(stretch) for stretch in self._stretches} != {one: id(at) for one, at in self._of.items()}:
            yield "KV blocks: the stretches are not those of the owners"
        edges = [("the start", range(0)), *((one.owner, one.blocks) for one in self._stretches)]
        edges.append(("the end", range(self.total, self.total)))
        for (owner, before), (next_owner, after) in pairwise(edges):
            if before.stop > after.start:
                yield f"KV blocks: {owner} ends at {before.stop}, {next_owner} begins at {after.start}"
        for stretch in self._stretches:
            if not stretch.blocks or stretch.blocks.stop > stretch.reach:
                yield f"KV blocks: {stretch.owner} owns {stretch.blocks} and may have all before {stretch.reach}"
