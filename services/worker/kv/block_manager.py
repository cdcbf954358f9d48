"""The owners of the blocks of the KV cache. A block has at most one owner, an owner one contiguous stretch. Pure.

Blocks are contiguous so that attention on a CPU reads without a gather; so a stretch can only grow into the blocks
behind it. While there is room, a newcomer is placed where all that it may ever need is free and blocks no other owner.

A cache in which every owner has such a place is mostly empty, since requests end long before their maximum. So blocks
that an owner may grow into and does not own yet are only reserved softly. A newcomer that finds no place of its own
starts in the middle of the longest soft stretch. When two stretches meet, the scheduler says which one gives way.
Blocks are never moved: that would save the recomputation of the few that meet, but every engine would have to copy
blocks during steps.

Above them are the tiers of the prefix cache: blocks without an owner, and blocks in host memory. What moves between
tiers is a list of copies, which the engine makes with its next step.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from livescale.services.worker.kv.radix_tree import RadixNode
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


class BlockTiers:
    """Which segment of the prefix cache lies in which block.

    Blocks 0 and up belong to the KV cache; the `host_blocks` negative ones lie in host memory. `lent` are blocks
    without an owner in which a sequence computes.
    """

    def __init__(self, kv: BlockManager, host_blocks: int) -> None:
        self.lent = range(0)
        self._kv = kv
        self._host_blocks = host_blocks
        self.clear()

    def clear(self) -> None:
        """Forget all segments: every block may take one again."""
        self._nodes: dict[int, RadixNode] = {}
        self._taken = bytearray(self._kv.total)  # by block, whether anything is kept there
        self._free_in_host = dict.fromkeys(range(-self._host_blocks, 0))

    def put(self, node: RadixNode, block: int) -> None:
        """Put a node's segment into a block that holds none."""
        node.block = block
        self._nodes[block] = node
        if block >= 0:
            self._taken[block] = True
            self._kv.put(range(block, block + 1))
        else:
            del self._free_in_host[block]

    def lift(self, block: int) -> RadixNode:
        """Take the segment out of a block, to be put elsewhere or dropped."""
        node = self._nodes.pop(block)
        if block >= 0:
            self._taken[block] = False
        else:
            self._free_in_host[block] = None
        return node

    def holds(self, node: RadixNode) -> bool:
        """Whether the node lies in the block that it names."""
        return self._nodes.get(node.block) is node

    def kept_in(self, blocks: range) -> list[int]:
        """Those of `blocks`, all in the KV cache, that hold a segment."""
        return [block for block in blocks if self._taken[block]]

    def least_kept(self, count: int) -> range | None:
        """`count` blocks in a row without an owner, about where the fewest segments lie; None where there are no
        such."""
        step = max(1, count // 4)
        starts = [start for gap in self._kv.unowned() for start in range(gap.start, gap.stop - count + 1, step)]
        start = min(starts, key=lambda start: self._taken.count(True, start, start + count), default=None)
        return None if start is None else range(start, start + count)

    def free(self, *, in_host: bool) -> Iterator[int]:
        """Yield blocks that may take a segment: the last of the KV cache first, those in host memory after them."""
        for gap in reversed(list(self._kv.unowned())):
            block = gap.stop
            while (block := self._taken.rfind(False, gap.start, block)) >= 0:
                if block not in self.lent:
                    yield block
        if in_host:
            yield from reversed(self._free_in_host)

    def is_free(self, block: int, *, in_host: bool) -> bool:
        """Whether a block without an owner may take a segment."""
        return block not in self._nodes and block not in self.lent and (block >= 0 or in_host)

    def broken(self, nodes: list[RadixNode]) -> Iterator[str]:
        """Yield what is wrong if `nodes` are all that is kept."""
        if {node.block: node for node in nodes} != self._nodes or len(self._nodes) != len(nodes):
            yield "prefix cache: the blocks in use are not those of the segments"
        if {block for block in range(self._kv.total) if self._taken[block]} != {one for one in self._nodes if one >= 0}:
            yield "prefix cache: the blocks that are marked are not those in use"
        if {*self._free_in_host} ^ {one for one in self._nodes if one < 0} != {*range(-self._host_blocks, 0)}:
            yield "prefix cache: a block in host memory is neither free nor in use, or both"
        owned = {block for owner in self._kv.owners for block in self._kv.owned(owner)}
        if not owned.isdisjoint(self.lent):
            yield f"prefix cache: of the blocks {self.lent}, which are lent, some are owned"
        if not owned.isdisjoint(self._nodes):
            yield f"prefix cache: something is kept in the blocks {sorted(owned & self._nodes.keys())}, which are owned"
