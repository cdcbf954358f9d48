"""A plan in the making: what the policies that keep out of serving's way have in common. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from livescale.services.planner.plans.groups import Group, NearCopies, gather_all, group_targets
from livescale.services.planner.plans.plan import (
    BlockSource,
    BlockTarget,
    CannotPlan,
    ClusterNode,
    Direction,
    LinkKind,
    Multicast,
    Over,
    Policy,
    Traffic,
    TransferFlow,
    TransferPlan,
    find_tails,
    path_kind,
)

# The kinds of path that need no network, and the kind of link that each begins with.
NEAR: tuple[tuple[Over, LinkKind], ...] = (("domain", "domain"), ("host_link", "link"))
SHOWN = 8  # names in a reason


class Draft:
    """The groups that are planned so far, and their flows.

    `left` is how many targets are still wanted. Raises CannotPlan where no node holds a block.
    """

    def __init__(self, multicast: Multicast) -> None:
        self.multicast = multicast
        self.traffic = Traffic(multicast)
        self.left = multicast.wanted
        self._whole = find_whole(multicast)
        self.flows: list[TransferFlow] = []
        self.groups: list[Group] = []
        self._kept: dict[tuple[str, Direction], str] = {}  # NICs that are used although serving uses them, too
        self._reasons: list[str] = []

    def feed_near(self) -> list[Group]:
        """Plan the groups that need no network. Returns the others by decreasing bandwidth (BlitzScale Fig. 11, line
        2)."""
        near = NearCopies(self._whole, sum(node.bandwidth for node in self._whole), self.traffic)
        far = []
        for group in sorted(group_targets(self.multicast.targets, self.traffic), key=by_bandwidth):
            part = group.first(self.left, self.traffic) if self.left else group
            flows = near.feed(part) if self.left else []
            if flows:
                self.add(part, flows)
            else:
                far.append(group)
        if self.groups:
            fed = name_some([node.id for group in self.groups for node in group.nodes])
            self.note(f"copies are near {fed}: no network is needed")
        return far

    def senders(self) -> list[ClusterNode]:
        """Return the nodes that can send over the network (BlitzScale Fig. 11, line 1).

        They are the holders that serving does not send from, and nodes that are fed by now. If there are none, it is
        the least busy holder.
        """
        fed = [node for group in self.groups for node in group.forwarders]
        free = [node for node in self._whole if not self.traffic.is_busy(node, "out")]
        busy = [node for node in self._whole if self.traffic.is_busy(node, "out")]
        if busy and not free and not fed:
            least = min(busy, key=lambda node: (self.traffic.share(node, "out"), node.requests, node.name))
            return [self._keep(least, "out")]
        if busy:
            self.note(f"not from {name_some([self._say(node, 'out') for node in busy])}")
        return free + fed

    def reach(self, group: Group) -> Group:
        """Return as many of the group as are wanted. If serving sends to all its NICs, the least busy one is used all
        the same."""
        group = group.first(self.left, self.traffic)
        if group.ports:
            return group
        port = min(group.nodes, key=lambda node: (self.traffic.share(node, "in"), node.name))
        return group.reached_by(self._keep(port, "in"))

    def take_part(self, group: Group) -> ClusterNode:
        """Return the node that receives and sends for the whole group: the least busy in both directions."""

        def order(node: ClusterNode) -> tuple[float, tuple[int, str]]:
            return self.traffic.share(node, "in") + self.traffic.share(node, "out"), node.name

        return self._keep(self._keep(min(group.nodes, key=order), "in"), "out")

    def interferes(self, sender: ClusterNode, group: Group) -> bool:
        """Say whether a sender would reach the group within its domain or host over a link that serving sends over."""
        return any(
            self.traffic.is_busy(sender, "out", link) and path_kind(sender, group.nodes[0]) == over
            for over, link in NEAR
        )

    def keep_near(self, senders: Sequence[ClusterNode], group: Group) -> None:
        """Note senders that are used although they interfere, as there are no others."""
        for sender in senders:
            if self.interferes(sender, group):
                self.note(f"there is none better than {sender.id}: serving sends near {group.nodes[0].id}, too")

    def assemble(self, group: Group) -> None:
        """Plan a group where no node has everything: its first node gets the parts, and the others follow in the
        domain."""
        first = next(target for target in group.targets if target.node is group.ports[0])
        flows = list(collect_parts(self.multicast, first, self.traffic))
        self.keep_used(flows)
        self.note(f"{first.node.id} gets parts of the model from {len(flows)} holders: none has all of it")
        self.add(group, [*flows, *gather_all(first.node, group)])

    def keep_used(self, flows: Iterable[TransferFlow]) -> None:
        """Note the NICs of flows that have no other choice, although serving uses them, too."""
        nodes = self.multicast.nodes
        for flow in flows:
            if flow.over == "network":
                self._keep(nodes[flow.sender], "out")
                self._keep(nodes[flow.receiver], "in")

    def add(self, group: Group, flows: Iterable[TransferFlow]) -> None:
        self.flows += flows
        self.groups.append(group)
        self.left -= len(group.targets)

    def note(self, reason: str) -> None:
        self._reasons.append(reason)

    def result(self, policy: Policy, pipelines: Sequence[tuple[str, ...]] = ()) -> TransferPlan:
        """Return the plan, with reasons for what had to be put up with."""
        if self._kept:
            self.note(f"there is none better than {name_some(list(self._kept.values()))}")
        if self.left:
            self.note(f"{self.left} more were wanted")
        targets = tuple(node.id for group in self.groups for node in group.nodes)
        return TransferPlan(
            policy=policy,
            flows=tuple(self.flows),
            targets=targets,
            tails=find_tails(self.flows, targets, self.multicast.nics),
            pruned=tuple(self._pruned()),
            pipelines=tuple(pipelines),
            reasons=tuple(self._reasons),
        )

    def _keep(self, node: ClusterNode, direction: Direction) -> ClusterNode:
        if self.traffic.is_busy(node, direction):
            self._kept.setdefault((node.at.nic, direction), self._say(node, direction))
        return node

    def _say(self, node: ClusterNode, direction: Direction) -> str:
        return f"{node.id} ({self.traffic.share(node, direction):.0%} of its NIC {direction} is taken)"

    def _pruned(self) -> Iterator[tuple[str, Direction]]:
        directions: tuple[Direction, ...] = ("in", "out")
        for id, node in self.multicast.nodes.items() if self.multicast.serving else ():
            for direction in directions:
                if self.traffic.is_busy(node, direction) and (node.at.nic, direction) not in self._kept:
                    yield id, direction


def by_bandwidth(group: Group) -> tuple[float, int, str, tuple[int, str]]:
    """Sort key: decreasing bandwidth, as BlitzScale 5.1 says (Fig. 11 has no direction); of equals those of a host
    together."""
    first = group.nodes[0]
    return -group.bandwidth, len(first.at.host), first.at.host, first.name


def in_leaf_order(groups: Iterable[Group], leaves: Sequence[str]) -> list[Group]:
    """Sort groups by leaf, in the order of the sources' leaves, then those of leaves without sources (Fig. 11, line 2).

    Groups that serving keeps from receiving, or from passing anything on, come last.
    """
    position = {leaf: index for index, leaf in enumerate(leaves)}

    def order(group: Group) -> tuple[object, ...]:
        leaf = group.leaf
        place = position.get(leaf, len(leaves)), len(leaf), leaf
        return not group.ports, not group.forwarders, place, by_bandwidth(group)

    return sorted(groups, key=order)


def find_whole(multicast: Multicast) -> list[ClusterNode]:
    """Return the nodes that hold all that any target misses: in memory, or on disk if no memory holds any of it.

    Raises CannotPlan where no node holds a block.
    """
    needed: frozenset[int] = frozenset().union(*{target.missing for target in multicast.targets})
    useful = [source for source in multicast.sources if source.blocks & needed]
    lost = sorted(needed.difference(*(source.blocks for source in useful)))
    if lost:
        raise CannotPlan(f"no node holds blocks {name_some(lost)} of {len(multicast.block_bytes)}")
    memories = [source for source in useful if source.node.place != "disk"]
    return [source.node for source in memories or useful if source.blocks >= needed]


def name_some(things: Sequence[object]) -> str:
    """List the first few of these things, and say how many more there are."""
    more = f" and {len(things) - SHOWN} more" if len(things) > SHOWN else ""
    return ", ".join(map(str, things[:SHOWN])) + more


def collect_parts(multicast: Multicast, target: BlockTarget, traffic: Traffic) -> Iterator[TransferFlow]:
    """Yield flows of what one target misses, each block from a node that holds it.

    Memory comes before disk, and nodes that serving leaves free before busy ones. The blocks are dealt so that all
    senders are done at about the same time.
    """
    busy_until: dict[str, float] = {}
    given: dict[str, list[int]] = {}
    nodes: dict[str, ClusterNode] = {}
    for block in target.missing:
        size = multicast.block_bytes[block]
        holders = [source for source in multicast.sources if block in source.blocks]
        best = min(holders, key=lambda source: _cost(source, target, size, busy_until, traffic)).node
        busy_until[best.id] = busy_until.get(best.id, 0.0) + size / best.bandwidth
        given.setdefault(best.id, []).append(block)
        nodes[best.id] = best
    for id, blocks in given.items():
        yield TransferFlow(id, target.node.id, tuple(blocks), over=path_kind(nodes[id], target.node))


def _cost(
    source: BlockSource, target: BlockTarget, size: int, busy_until: dict[str, float], traffic: Traffic
) -> tuple[bool, bool, float, tuple[int, str]]:
    node = source.node
    interferes = path_kind(node, target.node) == "network" and traffic.is_busy(node, "out")
    return node.place == "disk", interferes, busy_until.get(node.id, 0.0) + size / node.bandwidth, node.name
