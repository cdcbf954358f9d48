"""Serial forwarding chains (BlitzScale 5.1, Fig. 11): greedy, within leaves, in lanes, around serving traffic. Pure.

The figure cannot be meant to the letter in four places. Lines 1 and 2 sort by bandwidth without a direction, which is
decreasing according to the text. Line 7 adds D_tmp where it must move the leaf's sources to the front. Line 8 pops
until the popped sources suffice, not the remaining ones. By line 10 alone a leaf would have one chain however many
sources it has (see `SourceOrder.add_tail`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from livescale.services.planner.plans.draft import Draft, in_leaf_order
from livescale.services.planner.plans.groups import Group, choose_lanes, one_per_nic, sending_order, shard
from livescale.services.planner.plans.plan import ClusterNode, Multicast, Traffic, TransferPlan

ENOUGH = 1 - 1e-9  # sums of rates differ by rounding


class SourceOrder:
    """D_src of BlitzScale's Fig. 11: the nodes that may send next, by leaf, in the order in which they are taken.

    The leaf with the highest bandwidth is in front, and in it the fastest source (line 1).
    """

    def __init__(self, sources: Iterable[ClusterNode], traffic: Traffic) -> None:
        leaves: dict[str, list[ClusterNode]] = {}
        ranked = sorted(sources, key=lambda node: sending_order(node, traffic))
        for source in one_per_nic(ranked):
            leaves.setdefault(source.at.leaf, []).append(source)
        self._sums = {leaf: sum(node.bandwidth for node in nodes) for leaf, nodes in leaves.items()}
        front = sorted(leaves, key=lambda leaf: (-self._sums[leaf], len(leaf), leaf))
        self._queues = {leaf: deque(leaves[leaf]) for leaf in front}
        self._front = deque(front)

    @property
    def leaves(self) -> list[str]:
        """The leaves that have a source left, from the front."""
        return [leaf for leaf in self._front if self._queues[leaf]]

    def take(self, need: float, leaf: str, suits: Callable[[ClusterNode], bool]) -> list[ClusterNode]:
        """Take sources with at least the bandwidth that is needed, or all there are (lines 6 to 8).

        They are of this leaf if those suffice, else from the front. Sources that do not suit are taken only if none
        suits. The figure's line 7 must mean that the sources of the leaf come to the front, with the others behind
        them. Its line 8 pops sources from there until the popped ones suffice.
        """
        need *= ENOUGH
        within = self._pop(need, [leaf], suits) if self._sums.get(leaf, 0.0) >= need else []
        return within or self._pop(need, self.leaves, suits) or self._pop(need, self.leaves, lambda node: True)

    def _pop(self, need: float, leaves: Iterable[str], suits: Callable[[ClusterNode], bool]) -> list[ClusterNode]:
        taken: list[ClusterNode] = []
        for leaf in leaves:
            passed_over: list[ClusterNode] = []
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

    def give_back(self, nodes: Sequence[ClusterNode]) -> None:
        """Put sources that were taken but not needed to the front again."""
        for node in reversed(nodes):
            self._queues[node.at.leaf].appendleft(node)
            self._sums[node.at.leaf] += node.bandwidth

    def add_tail(self, nodes: Sequence[ClusterNode]) -> None:
        """Let targets that were just planned send next, before the sources of other leaves (line 10).

        In their own leaf they come last. To the letter they would be in front there, too, and one source would feed
        all. But every source is to have a chain, so that there are as many tails to go live as can be (Fig. 12).
        """
        for node in nodes:
            self._queues.setdefault(node.at.leaf, deque()).append(node)
            self._sums[node.at.leaf] = self._sums.get(node.at.leaf, 0.0) + node.bandwidth
        for leaf in {node.at.leaf: None for node in reversed(nodes)}:
            if leaf in self._front:
                self._front.remove(leaf)
            self._front.appendleft(leaf)


def plan_chains(multicast: Multicast) -> TransferPlan:
    """Plan chains from the sources through all targets (BlitzScale 5.1, Fig. 11). Raises CannotPlan."""
    draft = Draft(multicast)
    far = draft.feed_near()
    sources = SourceOrder(draft.senders(), draft.traffic)  # line 1
    for group in in_leaf_order(far, sources.leaves):  # line 2
        if not draft.left:  # line 4
            break
        feed(draft.reach(group), sources, draft)
    return draft.result("chains")


def feed(group: Group, sources: SourceOrder, draft: Draft) -> None:
    """Plan the flows to one group of targets (Fig. 11, lines 5 to 10)."""
    senders = sources.take(group.bandwidth, group.leaf, lambda node: not draft.interferes(node, group))
    if senders:
        draft.keep_near(senders, group)
        out, into = (node.bandwidth for node in senders), (port.at.nic_in for port in group.ports)
        lanes = choose_lanes(tuple(out), tuple(into))
        sources.give_back(senders[lanes:])
        senders = senders[:lanes]
        draft.add(group, shard(senders, group.ports, group, lanes))
    else:
        draft.assemble(group)
    # The senders of a group that cannot pass anything on have to send again.
    sources.add_tail(group.forwarders or senders)
