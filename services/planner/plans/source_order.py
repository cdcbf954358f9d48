"""D_src of BlitzScale's Fig. 11: who may send next, in the order in which they are taken. Pure."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from livescale.services.planner.plans.groups import one_a_nic
from livescale.services.planner.plans.network import Node
from livescale.services.planner.plans.traffic import Traffic

ENOUGH = 1 - 1e-9  # sums of rates differ by rounding


class SourceOrder:
    """Sources by leaf. The leaf with the highest bandwidth is in front, in it the fastest source (Fig. 11, line 1)."""

    def __init__(self, sources: Iterable[Node], traffic: Traffic) -> None:
        leaves: dict[str, list[Node]] = {}
        ranked = sorted(sources, key=lambda node: rank(node, traffic))
        for source in one_a_nic(ranked):
            leaves.setdefault(source.at.leaf, []).append(source)
        self._sums = {leaf: sum(node.bandwidth for node in nodes) for leaf, nodes in leaves.items()}
        front = sorted(leaves, key=lambda leaf: (-self._sums[leaf], len(leaf), leaf))
        self._queues = {leaf: deque(leaves[leaf]) for leaf in front}
        self._front = deque(front)

    @property
    def leaves(self) -> list[str]:
        """From the front, where there is anybody."""
        return [leaf for leaf in self._front if self._queues[leaf]]

    def take(self, need: float, leaf: str, suits: Callable[[Node], bool]) -> list[Node]:
        """Lines 6 to 8: enough bandwidth, from this leaf if it suffices, else from the front; or all there is. Only of
        those that suit, if any does.

        The figure's line 7 must mean that the sources of the leaf come to the front, the others behind them; its line
        8 pops from there until the popped ones suffice.
        """
        need *= ENOUGH
        within = self._pop(need, [leaf], suits) if self._sums.get(leaf, 0.0) >= need else []
        return within or self._pop(need, self.leaves, suits) or self._pop(need, self.leaves, lambda node: True)

    def _pop(self, need: float, leaves: Iterable[str], suits: Callable[[Node], bool]) -> list[Node]:
        taken: list[Node] = []
        for leaf in leaves:
            passed_over: list[Node] = []
            while self._queues[leaf] and need > 0:
                node = self._queues[leaf].popleft()
                if suits(node):
                    taken.append(node)
                    self._sums[leaf] -= node.bandwidth
                    need -= node.bandwidth
                else:
                    passed_over.append(node)
            self._queues[leaf].extendleft(reversed(passed_over))
        return taken

    def give_back(self, nodes: Sequence[Node]) -> None:
        """Taken, but not needed: in front again."""
        for node in reversed(nodes):
            self._queues[node.at.leaf].appendleft(node)
            self._sums[node.at.leaf] += node.bandwidth

    def add_tail(self, nodes: Sequence[Node]) -> None:
        """Line 10: targets that were just planned come in front of the sources of other leaves.

        In their own leaf they come last. To the letter, they would be in front there, too, and one source would feed
        all; but every source is to have a chain, so that there are as many tails to go live as can be (Fig. 12).
        """
        for node in nodes:
            self._queues.setdefault(node.at.leaf, deque()).append(node)
            self._sums[node.at.leaf] = self._sums.get(node.at.leaf, 0.0) + node.bandwidth
        for leaf in {node.at.leaf: None for node in reversed(nodes)}:
            if leaf in self._front:
                self._front.remove(leaf)
            self._front.appendleft(leaf)


def rank(node: Node, traffic: Traffic) -> tuple[float, bool, bool, float, int, tuple[int, str]]:
    """The fastest first; of equals who serves no requests, then a GPU, then who serves least."""
    serves = node.requests > 0
    return -node.bandwidth, serves, node.place != "worker", traffic.share(node, "out"), node.requests, node.name
