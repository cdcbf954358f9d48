"""Targets that a domain joins take a model together: in lanes, then by all-gather (BlitzScale 5.1, Fig. 14). Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import msgspec

from livescale.services.planner.plans.network import Node, Target, way
from livescale.services.planner.plans.plan import Flow
from livescale.services.planner.plans.traffic import Traffic


class Group(msgspec.Struct, frozen=True, gc=False):
    """Targets of one domain, or that share a NIC.

    `ports` take from the network and `forwarders` pass on: one a NIC, where serving does not use that direction.
    """

    targets: tuple[Target, ...]
    ports: tuple[Node, ...]
    forwarders: tuple[Node, ...]
    bandwidth: float  # of the ports together

    @property
    def leaf(self) -> str:
        return self.targets[0].node.at.leaf

    @property
    def id(self) -> str:
        return self.targets[0].node.group

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(target.node for target in self.targets)

    def first(self, count: int, traffic: Traffic) -> "Group":
        """As many of them; those that serving leaves free come first."""
        return self if count >= len(self.targets) else make_group(self.targets[:count], traffic)

    def reached_by(self, port: Node) -> "Group":
        """Through this NIC alone."""
        return msgspec.structs.replace(self, ports=(port,), bandwidth=port.at.nic_in)


def group_targets(targets: Iterable[Target], traffic: Traffic) -> list[Group]:
    """By domain (Fig. 11, line 2)."""
    domains: dict[str, list[Target]] = {}
    for target in targets:
        domains.setdefault(target.node.group, []).append(target)
    return [make_group(members, traffic) for members in domains.values()]


def make_group(members: Sequence[Target], traffic: Traffic) -> Group:
    def order(target: Target) -> tuple[bool, bool, float, tuple[int, str]]:
        node = target.node
        return traffic.is_busy(node, "in"), traffic.is_busy(node, "out"), -node.at.nic_in, node.name

    targets = tuple(sorted(members, key=order))
    nodes = [target.node for target in targets]
    ports = one_a_nic(node for node in nodes if not traffic.is_busy(node, "in"))
    forwarders = one_a_nic(node for node in nodes if not traffic.is_busy(node, "out"))
    return Group(targets, ports, forwarders, sum(port.at.nic_in for port in ports))


def one_a_nic(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """GPUs that share their host's NIC have its bandwidth once."""
    first: dict[str, Node] = {}
    for node in nodes:
        first.setdefault(node.at.nic, node)
    return tuple(first.values())


@lru_cache(maxsize=4096)
def choose_lanes(out: tuple[float, ...], into: tuple[float, ...]) -> int:
    """How many lanes carry most from senders to receivers of these rates; of equals the fewest.

    Lane i goes from sender i to receiver i, around either end. With equal rates this is min(senders, receivers); one
    fast host feeds several GPUs, and several slow disks feed one GPU.
    """
    best, fastest = 1, 0.0
    for lanes in range(1, max(len(out), len(into)) + 1):
        speed = lanes * min(*_per_lane(out, lanes), *_per_lane(into, lanes))
        if speed > fastest * (1 + 1e-9):
            best, fastest = lanes, speed
    return best


def _per_lane(rates: Sequence[float], lanes: int) -> Iterator[float]:
    """What each end leaves for one of the lanes that it has."""
    for index, rate in enumerate(rates[:lanes]):
        yield rate / len(range(index, lanes, len(rates)))


def shard(senders: Sequence[Node], ports: Sequence[Node], group: Group, lanes: int) -> Iterator[Flow]:
    """Lane i from sender i to port i of the group, and on to every other member."""
    missing = {target.node.id: target.missing for target in group.targets}
    for lane in range(lanes):
        sender, port = senders[lane % len(senders)], ports[lane % len(ports)]
        yield Flow(sender.id, port.id, missing[port.id], lane, lanes, way(sender, port))
        yield from gather_all(port, group, lane, lanes)


def gather_all(
    port: Node, group: Group, lane: int = 0, lanes: int = 1, order: Mapping[int, int] | None = None
) -> Iterator[Flow]:
    """One lane of the all-gather: from the port around the domain; every member sends each byte once at most.

    Blocks go in the order in which the receivers want them, or in which they come to the port: `order` by block.
    """
    if len(group.targets) == 1:
        return
    ring = around(port, group)
    over = way(ring[0].node, ring[1].node)
    for sender, receiver in pairwise(ring):
        blocks = receiver.missing
        if order is not None:
            blocks = tuple(sorted(blocks, key=lambda block: order.get(block, -1)))
        yield Flow(sender.node.id, receiver.node.id, blocks, lane, lanes, over)


def around(port: Node, group: Group) -> tuple[Target, ...]:
    """The members in the order in which they have what comes to the port."""
    members = group.targets
    start = next(index for index, member in enumerate(members) if member.node.id == port.id)
    return *members[start:], *members[:start]
