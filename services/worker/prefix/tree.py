"""A radix tree of prompts in segments of equal length, each in a block, by how recently it was used. Pure.

Whoever comes after a segment was only ever used together with it. So the least recently used of all has nothing after
it, and what is left after it is dropped are whole beginnings of prompts. What was named comes after all that was not,
with all before it, and by when it was named.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

from livescale.shared.policy.invariants import check

Segment = tuple[int, ...]  # token ids


class Node:
    """A prompt's beginning, up to the end of one segment. `block`: where the KV of that segment lies; whoever puts it
    there says so."""

    def __init__(self, parent: "Node | None", segment: Segment) -> None:
        self.parent = parent
        self.segment = segment
        self.block = 0
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[Segment, Node] = {}


class PrefixTree:
    """`root`: the beginning of all prompts, of no tokens; it is in no block."""

    def __init__(self) -> None:
        self.root = Node(None, ())
        self._recent: OrderedDict[Node, None] = OrderedDict()  # the least recently used first
        self._named: OrderedDict[Node, float] = OrderedDict()  # until when; the one first named first

    def __len__(self) -> int:
        return len(self._recent) + len(self._named)

    def __contains__(self, node: Node) -> bool:
        return node is self.root or node in self._recent or node in self._named

    def match(self, segments: list[Segment], after: Node | None = None) -> list[Node]:
        """The longest beginning that is here, segment by segment, of what comes `after` a node; it is used."""
        node, found = after or self.root, list[Node]()
        for segment in segments:
            child = node.children.get(segment)
            if child is None:
                break
            node = child
            found.append(node)
        self.use(node)
        return found

    def use(self, node: Node | None) -> None:
        """It and all before it, these last: so they stay longer than it."""
        while node is not None and node in self._recent:
            self._recent.move_to_end(node)
            node = node.parent

    def name(self, node: Node, until: float, most: int) -> None:
        """It and all before it stay until then, while there is anything else to drop. Of all that was named no more
        than the last `most` segments do."""
        while node.parent is not None:
            self._recent.pop(node, None)
            self._named[node] = until
            self._named.move_to_end(node)
            node = node.parent
        while len(self._named) > most:
            self._forget_name()

    def expire(self, now: float) -> None:
        """What was named until `now` stays no longer than what was not."""
        while self._named and next(iter(self._named.values())) <= now:
            self._forget_name()

    def is_named(self, node: Node) -> bool:
        return node in self._named

    def add(self, parent: Node, segment: Segment) -> Node:
        """What follows `parent`. The last of a row is to be used then: until it is, these are out of order."""
        node = parent.children[segment] = Node(parent, segment)
        self._recent[node] = None
        return node

    def oldest(self) -> Node | None:
        """What is to go first; nothing comes after it."""
        return next(self.nodes(), None)

    def drop(self, node: Node) -> None:
        """Raises ValueError for what others come after."""
        if node.children or node.parent is None:
            raise ValueError(
                f"{len(node.children)} segments come after the one in block {node.block}: drop these first"
            )
        del node.parent.children[node.segment]
        del (self._named if node in self._named else self._recent)[node]

    def nodes(self) -> Iterator[Node]:
        """All but the root, what is to go first first."""
        return chain(self._recent, self._named)

    def _forget_name(self) -> None:
        """Of the one first named. What comes after it was named no later, and went before it."""
        node, _ = self._named.popitem(last=False)
        self._recent[node] = None

    def check_invariants(self) -> None:
        """Raises InvariantBroken."""
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        seen = set[Node]()
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
