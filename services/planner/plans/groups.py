"""Targets that share a domain take a model together: in lanes, then by all-gather (BlitzScale 5.1, Fig. 14). Pure.

A group with a copy in its domain, or in the memory or on the disk of its host, is fed from there, without the network.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import msgspec

from livescale.services.planner.plans.plan import BlockTarget, ClusterNode, Traffic, TransferFlow, path_kind

# Where copies are taken from first: a GPU may have to serve, and a disk is slow.
PREFERENCE = ("host", "worker", "disk")


class Group(msgspec.Struct, frozen=True, gc=False):
    """Targets of one domain, or targets that share a NIC.

    `ports` take from the network and `forwarders` pass on: one for each NIC that serving does not use in that
    direction. `bandwidth` is what the ports receive together, in bytes a second.
    """

    targets: tuple[BlockTarget, ...]
    ports: tuple[ClusterNode, ...]
    forwarders: tuple[ClusterNode, ...]
    bandwidth: float  # of the ports together

    @property
    def leaf(self) -> str:
        return self.targets[0].node.at.leaf

    @property
    def id(self) -> str:
        return self.targets[0].node.group

    @property
    def nodes(self) -> tuple[ClusterNode, ...]:
        return tuple(target.node for target in self.targets)

    def first(self, count: int, traffic: Traffic) -> "Group":
        """Return the first `count` of the targets; those that serving leaves free come first."""
        return self if count >= len(self.targets) else make_group(self.targets[:count], traffic)

    def reached_by(self, port: ClusterNode) -> "Group":
        """Return the same group, reached through the NIC of this port alone."""
        return msgspec.structs.replace(self, ports=(port,), bandwidth=port.at.nic_in)


def group_targets(targets: Iterable[BlockTarget], traffic: Traffic) -> list[Group]:
    """Return the targets by domain (BlitzScale Fig. 11, line 2)."""
    domains: dict[str, list[BlockTarget]] = {}
    for target in targets:
        domains.setdefault(target.node.group, []).append(target)
    return [make_group(members, traffic) for members in domains.values()]


def make_group(members: Sequence[BlockTarget], traffic: Traffic) -> Group:
    """Return a group of these targets, those that serving leaves free first."""

    def order(target: BlockTarget) -> tuple[bool, bool, float, tuple[int, str]]:
        node = target.node
        return traffic.is_busy(node, "in"), traffic.is_busy(node, "out"), -node.at.nic_in, node.name

    targets = tuple(sorted(members, key=order))
    nodes = [target.node for target in targets]
    ports = one_per_nic(node for node in nodes if not traffic.is_busy(node, "in"))
    forwarders = one_per_nic(node for node in nodes if not traffic.is_busy(node, "out"))
    return Group(targets, ports, forwarders, sum(port.at.nic_in for port in ports))


def one_per_nic(nodes: Iterable[ClusterNode]) -> tuple[ClusterNode, ...]:
    """Return the first node of each NIC, as GPUs that share their host's NIC have its bandwidth once."""
    first: dict[str, ClusterNode] = {}
    for node in nodes:
        first.setdefault(node.at.nic, node)
    return tuple(first.values())


def sending_order(node: ClusterNode, traffic: Traffic) -> tuple[float, bool, bool, bool, float, int, tuple[int, str]]:
    """Sort key: the fastest sender first; of equals those that do not prefill for others, then those without requests,
    then GPUs, then the least busy."""
    serves, share = node.requests > 0, traffic.share(node, "out")
    return -node.bandwidth, node.prefills, serves, node.place != "worker", share, node.requests, node.name


@lru_cache(maxsize=4096)
def choose_lanes(out: tuple[float, ...], into: tuple[float, ...]) -> int:
    """Return how many lanes carry most from senders to receivers of these rates, in bytes a second; of equals the
    fewest.

    Lane i goes from sender i to receiver i, and begins again with the first where either end has fewer. With equal
    rates there are min(senders, receivers) lanes. One fast host feeds several GPUs, and several slow disks feed one
    GPU.
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


def shard(
    senders: Sequence[ClusterNode], ports: Sequence[ClusterNode], group: Group, lanes: int
) -> Iterator[TransferFlow]:
    """Yield the flows of each lane: lane i from sender i to port i of the group, and on to every other member."""
    missing = {target.node.id: target.missing for target in group.targets}
    for lane in range(lanes):
        sender, port = senders[lane % len(senders)], ports[lane % len(ports)]
        yield TransferFlow(sender.id, port.id, missing[port.id], lane, lanes, path_kind(sender, port))
        yield from gather_all(port, group, lane, lanes)


def share_out(sender: ClusterNode, group: Group) -> Iterator[TransferFlow]:
    """Yield a flow to each member from the memory of their host.

    It has no limit of its own, so lanes and an all-gather gain only where the domain is faster than the way to that
    memory. Where workers are CPU cores these are the same memory, and members map what the host sends them.
    """
    for target in group.targets:
        yield TransferFlow(sender.id, target.node.id, target.missing, 0, 1, path_kind(sender, target.node))


def gather_all(
    port: ClusterNode, group: Group, lane: int = 0, lanes: int = 1, order: Mapping[int, int] | None = None
) -> Iterator[TransferFlow]:
    """Yield one lane of the all-gather: from the port around the domain, so that every member sends each byte at most
    once.

    Blocks go in the order in which the receivers want them, or by `order`, a number for each block.
    """
    if len(group.targets) == 1:
        return
    ring = ring_from(port, group)
    over = path_kind(ring[0].node, ring[1].node)
    for sender, receiver in pairwise(ring):
        blocks = receiver.missing
        if order is not None:
            blocks = tuple(sorted(blocks, key=lambda block: order.get(block, -1)))
        yield TransferFlow(sender.node.id, receiver.node.id, blocks, lane, lanes, over)


def ring_from(port: ClusterNode, group: Group) -> tuple[BlockTarget, ...]:
    """Return the members in the order in which they get what comes to the port."""
    members = group.targets
    start = next(index for index, member in enumerate(members) if member.node.id == port.id)
    return *members[start:], *members[:start]


class NearCopies:
    """Whole copies that targets reach without the network, by domain and by host.

    What their links carry does not interfere with what serving sends over the network (BlitzScale 5.1). Copies from
    which serving sends over these links, too, are left out. `network` is the rate at which copies could be sent
    instead, in bytes a second. If it is zero, a copy on the same machine is near even if the way to it counts as
    network.
    """

    def __init__(self, whole: Sequence[ClusterNode], network: float, traffic: Traffic) -> None:
        def order(node: ClusterNode) -> tuple[int, bool, float, int, tuple[int, str]]:
            preference = PREFERENCE.index(node.place)
            return preference, node.prefills, traffic.share(node, "out"), node.requests, node.name

        self._network = network
        self._domains: dict[str, ClusterNode] = {}
        self._machines: dict[str, ClusterNode] = {}
        for node in sorted(whole, key=order):
            if traffic.is_busy(node, "out", "domain") or traffic.is_busy(node, "out", "link"):
                continue
            self._machines.setdefault(node.machine, node)
            if node.place == "worker":
                self._domains.setdefault(node.group, node)

    def feed(self, group: Group) -> list[TransferFlow]:
        """Return flows to all of the group, or none where the network is faster."""
        if sender := self._domains.get(group.id):
            return list(shard([sender], group.nodes[:1], group, 1))
        machines = {node.machine for node in group.nodes}
        sender = self._machines.get(group.nodes[0].machine)
        if sender is None or len(machines) > 1 or (self._network and path_kind(sender, group.nodes[0]) == "network"):
            return []
        out = sender.at.disk if sender.place == "disk" else sender.host_link
        into = tuple(node.host_link for node in group.nodes)
        lanes = choose_lanes((out,), into)
        if min(out, sum(into[:lanes])) < min(group.bandwidth, self._network):
            return []
        if sender.place != "host":  # the next group of this machine goes on from here
            self._machines[sender.machine] = group.nodes[0]
        elif all(node.at.domain_bandwidth <= node.host_link for node in group.nodes):
            return list(share_out(sender, group))
        return list(shard([sender], group.nodes, group, lanes))
