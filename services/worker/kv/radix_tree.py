"""A radix tree of prompts in segments of equal length, each in a block, ordered by how recently it was used. Pure.

A segment is only ever used together with those before it. So the least recently used of all has nothing after it, and
when it is dropped whole beginnings of prompts are left. Segments that were named come after all others, together with
those before them, in the order in which they were named.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

from livescale.shared.policy.invariants import check

Segment = tuple[int | str, ...]  # token ids, after what tells apart prompts that are not to share KV


class RadixNode:
    """The beginning of a prompt, up to the end of one segment.

    `block` is where the KV of that segment lies; the code that puts it there sets it.
    """

    def __init__(self, parent: "RadixNode | None", segment: Segment) -> None:
        self.parent = parent
        self.segment = segment
        self.block = 0
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[Segment, RadixNode] = {}


class RadixTree:
    """All beginnings of prompts that are kept. `root` is the empty beginning, which lies in no block."""

    def __init__(self) -> None:
        self.root = RadixNode(None, ())
        self._recent: OrderedDict[RadixNode, None] = OrderedDict()  # the least recently used first
        self._named: OrderedDict[RadixNode, float] = OrderedDict()  # until when; the one first named first

    def __len__(self) -> int:
        return len(self._recent) + len(self._named)

    def __contains__(self, node: RadixNode) -> bool:
        return node is self.root or node in self._recent or node in self._named

    def match(self, segments: list[Segment], after: RadixNode | None = None) -> list[RadixNode]:
        """The nodes of the longest known beginning of `segments`, which follow the node `after`; they count as used."""
        node, found = after or self.root, list[RadixNode]()
        for segment in segments:
            child = node.children.get(segment)
            if child is None:
                break
            node = child
            found.append(node)
        self.use(node)
        return found

    def use(self, node: RadixNode | None) -> None:
        """Mark a node and all before it as used. Those before it count as used later, so they stay longer."""
        while node is not None and node in self._recent:
            self._recent.move_to_end(node)
            node = node.parent

    def name(self, node: RadixNode, until: float, most: int) -> None:
        """Keep a node and all before it until the time `until`, while there is anything else to drop. Only the last
        `most` named segments stay named."""
        while node.parent is not None:
            self._recent.pop(node, None)
            self._named[node] = until
            self._named.move_to_end(node)
            node = node.parent
        while len(self._named) > most:
            self._forget_name()

    def expire(self, now: float) -> None:
        """Treat segments that were named until `now` or earlier like those without a name."""
        while self._named and next(iter(self._named.values())) <= now:
            self._forget_name()

    def is_named(self, node: RadixNode) -> bool:
        return node in self._named

    def add(self, parent: RadixNode, segment: Segment) -> RadixNode:
        """Add the segment that follows `parent`.

        After a row of them the caller marks the last as used; until then the order of use is broken.
        """
        node = parent.children[segment] = RadixNode(parent, segment)
        self._recent[node] = None
        return node

    def oldest(self) -> RadixNode | None:
        """The node to drop first, which has nothing after it; None where the tree is empty."""
        return next(self.nodes(), None)

    def drop(self, node: RadixNode) -> None:
        """Remove a node. Raises ValueError where others follow it."""
        if node.children or node.parent is None:
            raise ValueError(
                f"{len(node.children)} segments come after the one in block {node.block}: drop these first"
            )
        del node.parent.children[node.segment]
        del (self._named if node in self._named else self._recent)[node]

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes but the root, those to drop first first."""
        return chain(self._recent, self._named)

    def _forget_name(self) -> None:
        """Take the oldest name away. What follows it was named no later, and lost its name before."""
        node, _ = self._named.popitem(last=False)
        self._recent[node] = None

    def check_invariants(self) -> None:
        """Check that parents know their children and are used no less recently. Raises InvariantBroken."""
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        seen = set[RadixNode]()
        for node in self.nodes():
            seen.add(node)
            if node.parent is None or node.parent.children.get(node.segment) is not node:
                yield f"prefix tree: the segment in block {node.block} does not follow the one before it"
            elif node.parent in seen:
                yield f"prefix tree: block {node.block} was used after {node.parent.block}, which comes before it"
        if any(node in self._recent for node in self._named):
            yield "prefix tree: what was named is among what was not"
        if any(child not in seen for node in (self.root, *seen) for child in node.children.values()):
            yield "prefix tree: a segment is in no order of use"
