"""Serial forwarding chains (BlitzScale 5.1, Fig. 11): greedy, within leaves, in lanes, around serving traffic. Pure."""

from collections.abc import Iterable, Sequence

from services.planner.plans.groups import Group, choose_lanes, gather_all, group_targets, shard
from services.planner.plans.near import Near
from services.planner.plans.network import Multicast, Node, Traffic
from services.planner.plans.plan import Direction, Flow, TransferPlan, find_tails
from services.planner.plans.source_order import SourceOrder
from services.planner.plans.supply import collect, find_whole, name_some


def plan_chains(multicast: Multicast) -> TransferPlan:
    """Raises CannotPlan."""
    chains = Chains(multicast)
    chains.plan()
    return chains.result()


class Chains:
    """One run of the algorithm, and what it has planned so far."""

    def __init__(self, multicast: Multicast) -> None:
        self._multicast = multicast
        self._traffic = Traffic(multicast)
        self._flows: list[Flow] = []
        self._groups: list[Group] = []
        self._left = multicast.wanted
        self._kept: set[tuple[str, Direction]] = set()  # NICs that are used although serving uses them
        self._reasons: list[str] = []

    def plan(self) -> None:
        whole = find_whole(self._multicast)
        groups = sorted(group_targets(self._multicast.targets, self._traffic), key=by_bandwidth)
        far = self._feed_near(groups, Near(whole))
        near = [node for group in self._groups for node in group.forwarders]
        sources = SourceOrder([*self._prune(whole, bool(near)), *near], self._traffic)
        for group in in_leaf_order(far, sources.leaves):
            if not self._left:  # line 4
                break
            self._feed(self._reach(group.first(self._left, self._traffic)), sources)

    def result(self) -> TransferPlan:
        targets = tuple(node.id for group in self._groups for node in group.nodes)
        return TransferPlan(
            policy="chains",
            flows=tuple(self._flows),
            targets=targets,
            tails=find_tails(self._flows, targets, self._multicast.nics),
            pruned=tuple(self._pruned()),
            reasons=(*self._reasons, *self._count()),
        )

    def _feed_near(self, groups: Iterable[Group], near: Near) -> list[Group]:
        """Plan the groups that need no network; returns the others."""
        far = []
        for group in groups:
            part = group.first(self._left, self._traffic) if self._left else group
            flows = near.feed(part) if self._left else []
            if flows:
                self._add(part, flows)
            else:
                far.append(group)
        if self._groups:
            near_targets = name_some([node.id for group in self._groups for node in group.nodes])
            self._reasons.append(f"copies are near {near_targets}: no network is needed")
        return far

    def _prune(self, whole: Sequence[Node], may_be_none: bool) -> list[Node]:
        """Line 1: sources that serving does not send from; the least busy one if there would be none."""
        free = [node for node in whole if not self._traffic.is_busy(node, "out")]
        busy = [node for node in whole if self._traffic.is_busy(node, "out")]
        if busy and (free or may_be_none):
            self._reasons.append(f"not from {name_some([self._say(node, 'out') for node in busy])}")
        if free or may_be_none or not busy:
            return free
        return [
            self._keep(min(busy, key=lambda node: (self._traffic.share(node, "out"), node.requests, node.id)), "out")
        ]

    def _reach(self, group: Group) -> Group:
        """The group as it can be reached: if serving sends to all its NICs, by the least busy one all the same."""
        if group.ports:
            return group
        port = min(group.nodes, key=lambda node: (self._traffic.share(node, "in"), node.id))
        return group.reached_by(self._keep(port, "in"))

    def _feed(self, group: Group, sources: SourceOrder) -> None:
        """Lines 6 to 10."""
        senders = sources.take(group.bandwidth, group.leaf)
        if senders:
            out, into = (node.bandwidth for node in senders), (port.at.nic_in for port in group.ports)
            lanes = choose_lanes(tuple(out), tuple(into))
            sources.give_back(senders[lanes:])
            senders = senders[:lanes]
            self._add(group, shard(senders, group.ports, group, lanes))
        else:
            self._assemble(group)
        # Those who feed a group that cannot pass on have to send again.
        sources.add_tail(group.forwarders or senders)

    def _assemble(self, group: Group) -> None:
        """Nobody has all: the first of the group gets the parts, the others follow in the domain."""
        first = next(target for target in group.targets if target.node is group.ports[0])
        flows = list(collect(self._multicast, first, self._traffic))
        nodes = self._multicast.nodes
        for flow in flows:
            if flow.over == "network" and self._traffic.is_busy(nodes[flow.sender], "out"):
                self._keep(nodes[flow.sender], "out")
        self._reasons.append(f"{first.node.id} gets parts of the model from {len(flows)} holders: nobody has all of it")
        self._add(group, [*flows, *gather_all(first.node, group, 0, 1)])

    def _add(self, group: Group, flows: Iterable[Flow]) -> None:
        """Line 9."""
        self._flows += flows
        self._groups.append(group)
        self._left -= len(group.targets)

    def _keep(self, node: Node, direction: Direction) -> Node:
        if (node.at.nic, direction) not in self._kept:
            self._kept.add((node.at.nic, direction))
            self._reasons.append(f"there is none better than {self._say(node, direction)}")
        return node

    def _say(self, node: Node, direction: Direction) -> str:
        return f"{node.id} (serving takes {self._traffic.share(node, direction):.0%} of its NIC {direction})"

    def _pruned(self) -> Iterable[tuple[str, Direction]]:
        for id, node in self._multicast.nodes.items() if self._multicast.serving else ():
            directions: tuple[Direction, ...] = ("in", "out")
            for direction in directions:
                if self._traffic.is_busy(node, direction) and (node.at.nic, direction) not in self._kept:
                    yield id, direction

    def _count(self) -> Iterable[str]:
        if self._left:
            yield f"{self._left} more were wanted"
        lanes = max((flow.lanes for flow in self._flows), default=1)
        if lanes > 1:
            yield f"up to {lanes} lanes, all-gather in the domains"


def by_bandwidth(group: Group) -> tuple[float, str, str]:
    """Line 2: decreasing, as section 5.1 says; of equals those of a host together."""
    return -group.bandwidth, group.nodes[0].at.host, group.id


def in_leaf_order(groups: Iterable[Group], leaves: Sequence[str]) -> list[Group]:
    """The rest of line 2: leaves in the order of the sources, then those without any; who cannot be reached or pass
    anything on because of serving comes last."""
    position = {leaf: index for index, leaf in enumerate(leaves)}

    def order(group: Group) -> tuple[bool, bool, int, str, tuple[float, str, str]]:
        leaf = group.leaf
        return not group.ports, not group.forwarders, position.get(leaf, len(leaves)), leaf, by_bandwidth(group)

    return sorted(groups, key=order)
