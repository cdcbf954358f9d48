"""What the planner sees: nodes in a cluster, who holds which blocks, who misses some, what serving sends. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, assert_never

import msgspec

from livescale.services.planner.plans.plan import CannotPlan, Direction, LinkKind, Over
from livescale.shared.topology.paths import TopologyPlace, path_between
from livescale.shared.topology.topology import Topology


class Node(msgspec.Struct, frozen=True, gc=False):
    """One end of a transfer, and where in the cluster it is.

    `place`: a worker's GPU, a host's memory, or the disk of a host that does not hold the model in memory. `requests`
    are those that it serves.
    """

    id: str
    place: Literal["worker", "host", "disk"]
    at: TopologyPlace
    requests: int = 0

    @property
    def group(self) -> str:
        """Its scale-up domain; without one, the GPUs that share its NIC. A host's memory is alone."""
        if self.at.domain is None:
            return f"memory of {self.id}"
        return self.at.domain if self.at.domain_bandwidth else f"NIC of {self.at.nic}"

    @property
    def machine(self) -> str:
        return self.at.machine or self.at.host

    @property
    def name(self) -> tuple[int, str]:
        """For ties: by id, and n2 before n10."""
        return len(self.id), self.id

    @property
    def host_link(self) -> float:
        """Between it and its host's memory; that memory itself is not limited."""
        return float("inf") if self.at.domain is None else self.at.host_link

    def link(self, kind: LinkKind, direction: Direction) -> tuple[str, float]:
        """Who owns the link of this kind that it uses, and what that carries, bytes/s."""
        at = self.at
        match kind:
            case "nic":
                return at.nic, at.nic_out if direction == "out" else at.nic_in
            case "uplink":
                return at.leaf, at.uplink_out if direction == "out" else at.uplink_in
            case "domain":
                return at.id, at.domain_bandwidth
            case "link":
                return at.id, self.host_link
            case _:
                assert_never(kind)

    @property
    def bandwidth(self) -> float:
        """What it can send over the network, bytes/s: a disk may be slower than the NIC."""
        return min(self.at.nic_out, self.at.disk) if self.place == "disk" else self.at.nic_out


class Source(msgspec.Struct, frozen=True, gc=False):
    """A node and the blocks that it holds, or that are on their way to it by another plan."""

    node: Node
    blocks: frozenset[int]


class Target(msgspec.Struct, frozen=True, gc=False):
    """A node that can take the model, and the blocks that it misses, in the order in which it wants them."""

    node: Node
    missing: tuple[int, ...]


class ServingFlow(msgspec.Struct, frozen=True, gc=False):
    """Measured traffic of serving (KV, activations) over one direction of a link, bytes/s.

    `node` owns the link: a GPU, a host, or a leaf; or it uses the NIC.
    """

    node: str
    direction: Direction
    rate: float
    over: LinkKind = "nic"


class Multicast(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be planned: `count` of `targets` (0: all) get what they miss of a model of these blocks.

    Blocks are indices into `block_bytes`. A target that holds some blocks is a source of those, too. Raises ValueError
    for a target that misses nothing, or holds what it misses, and for a source that is named twice.
    """

    block_bytes: tuple[int, ...]
    sources: tuple[Source, ...]
    targets: tuple[Target, ...]
    count: int = 0
    serving: tuple[ServingFlow, ...] = ()

    def __post_init__(self) -> None:
        held = {source.node.id: source.blocks for source in self.sources if source.node.place != "disk"}
        twice = [id for id, count in Counter(source.node.id for source in self.sources).items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0]} is a source twice; a host whose memory has the model need not read it")
        for target in self.targets:
            if not target.missing:
                raise ValueError(f"target {target.node.id} misses nothing")
            if target.node.id in held and not held[target.node.id].isdisjoint(target.missing):
                raise ValueError(f"target {target.node.id} holds blocks that it misses")

    @property
    def wanted(self) -> int:
        return min(self.count or len(self.targets), len(self.targets))

    @property
    def nodes(self) -> dict[str, Node]:
        targets = {target.node.id: target.node for target in self.targets}
        return targets | {source.node.id: source.node for source in self.sources}

    @property
    def disks(self) -> frozenset[str]:
        """The hosts that have it on disk only."""
        return frozenset(source.node.id for source in self.sources if source.node.place == "disk")

    @property
    def nics(self) -> dict[str, str]:
        """Whose NIC each node uses."""
        return {id: node.at.nic for id, node in self.nodes.items()}


def multicast_over(
    topology: Topology,
    block_bytes: Iterable[int],
    holders: Iterable[str],
    takers: Iterable[str],
    *,
    count: int = 0,
    disks: Iterable[str] = (),
    serving: Iterable[ServingFlow] = (),
) -> Multicast:
    """For nodes that are called as the topology calls them: whole copies at `holders` (GPUs or hosts' memories) and on
    the `disks` of hosts (those of `holders` need not be read), nothing yet at `takers`.

    Raises CannotPlan for an id that the topology lacks.
    """
    sizes = tuple(block_bytes)
    every = tuple(range(len(sizes)))
    whole = frozenset(every)
    places = topology.places
    memories = {id: Source(node_at(places, id), whole) for id in holders}
    reading = [Source(node_at(places, id, on_disk=True), whole) for id in disks if id not in memories]
    return Multicast(
        block_bytes=sizes,
        sources=(*memories.values(), *reading),
        targets=tuple(Target(node_at(places, id), every) for id in takers),
        count=count,
        serving=tuple(serving),
    )


def node_at(places: Mapping[str, TopologyPlace], id: str, *, on_disk: bool = False) -> Node:
    """The GPU, host's memory or disk of this id. Raises CannotPlan."""
    if id not in places:
        raise CannotPlan(f"{id!r} is neither a GPU nor a host of the topology")
    at = places[id]
    if on_disk:
        return Node(id, "disk", at)
    return Node(id, "host" if at.domain is None else "worker", at)


def way(sender: Node, receiver: Node) -> Over:
    """By which kind of link a flow goes."""
    over = path_between(sender.at, receiver.at).over
    return "disk" if sender.place == "disk" and over != "network" else over
