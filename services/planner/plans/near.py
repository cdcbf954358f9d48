"""Copies that targets reach without the network: in their domain, in the memory or on the disk of their host. Pure."""

from collections.abc import Sequence

from livescale.services.planner.plans.groups import Group, choose_lanes, shard
from livescale.services.planner.plans.network import Node, way
from livescale.services.planner.plans.plan import Flow
from livescale.services.planner.plans.traffic import Traffic

# A GPU may have to serve, and a disk is slow. Of several GPUs it is the one that has least to do.
PREFERENCE = ("host", "worker", "disk")


class Near:
    """Whole copies by domain and by host. What these links carry does not interfere with what serving sends over the
    network (BlitzScale 5.1); copies from which it sends over these links, too, are left out."""

    def __init__(self, whole: Sequence[Node], network: float, traffic: Traffic) -> None:
        """`network`: what copies could be sent with instead, bytes/s. If that is nothing, a copy of the same machine is
        near even if the way to it counts as network."""

        def order(node: Node) -> tuple[int, float, int, tuple[int, str]]:
            return PREFERENCE.index(node.place), traffic.share(node, "out"), node.requests, node.name

        self._network = network
        self._domains: dict[str, Node] = {}
        self._machines: dict[str, Node] = {}
        for node in sorted(whole, key=order):
            if traffic.is_busy(node, "out", "domain") or traffic.is_busy(node, "out", "link"):
                continue
            self._machines.setdefault(node.machine, node)
            if node.place == "worker":
                self._domains.setdefault(node.group, node)

    def feed(self, group: Group) -> list[Flow]:
        """Flows to all of the group, or none where the network does it faster."""
        if sender := self._domains.get(group.id):
            return list(shard([sender], group.nodes[:1], group, 1))
        machines = {node.machine for node in group.nodes}
        sender = self._machines.get(group.nodes[0].machine)
        if sender is None or len(machines) > 1 or (self._network and way(sender, group.nodes[0]) == "network"):
            return []
        out = sender.at.disk if sender.place == "disk" else sender.host_link
        into = tuple(node.host_link for node in group.nodes)
        lanes = choose_lanes((out,), into)
        if min(out, sum(into[:lanes])) < min(group.bandwidth, self._network):
            return []
        if sender.place != "host":  # the next group of this machine goes on from here
            self._machines[sender.machine] = group.nodes[0]
        return list(shard([sender], group.nodes, group, lanes))
