"""The memory tiers of the prefix cache: blocks of the KV cache without an owner, and blocks in host memory. Pure.

What moves between blocks and tiers is a list of copies, which the engine makes with its next step.
"""

from collections.abc import Iterator

from livescale.services.worker.kv.block_manager import BlockManager
from livescale.services.worker.kv.radix_tree import RadixNode


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
