"""A multicast and its plan: which nodes hold or miss blocks, and which sends what to which. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, assert_never

import msgspec

from livescale.shared.topology.paths import TopologyPlace, path_between
from livescale.shared.topology.topology import Topology

Policy = Literal["chains", "binomial", "tree", "fanout", "ring", "local"]
Direction = Literal["in", "out"]
Over = Literal["network", "domain", "host_link", "disk", "local"]
LinkKind = Literal["nic", "uplink", "domain", "link"]  # the last is to the host's memory


class CannotPlan(Exception):
    """No plan is possible. The message says why."""


class TransferFlow(msgspec.Struct, frozen=True, gc=False):
    """Blocks that `sender` gives `receiver` in this order, each chunk as soon as it has it.

    With `lanes` > 1 it carries only every `lanes`-th stripe of each block, from the `lane`-th on. With `steps`, one for
    each block, a node sends in the order of steps over all its flows, one block at a time.
    """

    sender: str
    receiver: str
    blocks: tuple[int, ...]
    lane: int = 0
    lanes: int = 1
    over: Over = "network"
    steps: tuple[int, ...] = ()


class TransferPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Flows that together give every target each byte that it misses exactly once.

    `tails` send nothing over a NIC that forwards: they can serve live while they load (BlitzScale 5.1). `pruned` are
    the directions of nodes that serving traffic uses and no network flow does. `pipelines` are execution pipelines
    (LambdaScale 4.3): nodes that together hold the whole model before each of them does.
    """

    policy: Policy
    flows: tuple[TransferFlow, ...]
    targets: tuple[str, ...]
    tails: tuple[str, ...]
    pruned: tuple[tuple[str, Direction], ...] = ()
    pipelines: tuple[tuple[str, ...], ...] = ()
    reasons: tuple[str, ...] = ()


def find_tails(flows: Iterable[TransferFlow], targets: Iterable[str], nics: Mapping[str, str]) -> tuple[str, ...]:
    """Return the targets whose NIC sends nothing; `nics` names the NIC of each node."""
    sending = {nics[flow.sender] for flow in flows if flow.over == "network"}
    return tuple(target for target in targets if nics[target] not in sending)


# Serving traffic below this share of a link's bandwidth is not worth a detour.
BUSY_SHARE = 0.05


class ClusterNode(msgspec.Struct, frozen=True, gc=False):
    """One end of a transfer, and where in the cluster it is.

    `place` is a worker's GPU, a host's memory, or the disk of a host that does not hold the model in memory. `requests`
    are those that it serves. One that `prefills` for others sends KV as soon as a prompt comes, even if it sends none
    now.
    """

    id: str
    place: Literal["worker", "host", "disk"]
    at: TopologyPlace
    requests: int = 0
    prefills: bool = False

    @property
    def group(self) -> str:
        """Its scale-up domain, or without one the GPUs that share its NIC. A host's memory is alone."""
        if self.at.domain is None:
            return f"memory of {self.id}"
        return self.at.domain if self.at.domain_bandwidth else f"NIC of {self.at.nic}"

    @property
    def machine(self) -> str:
        """The machine that it runs on, which may have several hosts of the topology."""
        return self.at.machine or self.at.host

    @property
    def name(self) -> tuple[int, str]:
        """A key that breaks ties: by id, with n2 before n10."""
        return len(self.id), self.id

    @property
    def host_link(self) -> float:
        """The rate between it and its host's memory, in bytes a second; that memory itself is not limited."""
        return float("inf") if self.at.domain is None else self.at.host_link

    def link(self, kind: LinkKind, direction: Direction) -> tuple[str, float]:
        """Return the owner of the link of this kind that the node uses, and what that link carries in bytes a
        second."""
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
        """What it can send over the network, in bytes a second. A disk may be slower than the NIC."""
        return min(self.at.nic_out, self.at.disk) if self.place == "disk" else self.at.nic_out


class BlockSource(msgspec.Struct, frozen=True, gc=False):
    """A node and the blocks that it holds, or that are on their way to it by another plan."""

    node: ClusterNode
    blocks: frozenset[int]


class BlockTarget(msgspec.Struct, frozen=True, gc=False):
    """A node that can take the model, and the blocks that it misses, in the order in which it wants them."""

    node: ClusterNode
    missing: tuple[int, ...]


class ServingFlow(msgspec.Struct, frozen=True, gc=False):
    """Measured traffic of serving (KV, activations) over one direction of a link, in bytes a second.

    `node` is a GPU, a host or a leaf that owns the link; for a NIC it may be any node that uses it.
    """

    node: str
    direction: Direction
    rate: float
    over: LinkKind = "nic"


class Multicast(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be planned: `count` of the `targets` (0: all) get what they miss of a model.

    `block_bytes` are the sizes of the model's blocks, which are named by their indices. A target that holds some blocks
    is a source of those, too. Raises ValueError for a target that misses nothing or holds what it misses, and for a
    source that is named twice.
    """

    block_bytes: tuple[int, ...]
    sources: tuple[BlockSource, ...]
    targets: tuple[BlockTarget, ...]
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
        """How many of the targets are to get the model: `count`, or all of them."""
        return min(self.count or len(self.targets), len(self.targets))

    @property
    def nodes(self) -> dict[str, ClusterNode]:
        """All targets and sources by their ids. A node that is both stands as a source."""
        targets = {target.node.id: target.node for target in self.targets}
        return targets | {source.node.id: source.node for source in self.sources}

    @property
    def disks(self) -> frozenset[str]:
        """The hosts that have the model on disk only."""
        return frozenset(source.node.id for source in self.sources if source.node.place == "disk")

    @property
    def nics(self) -> dict[str, str]:
        """The NIC that each node uses, by the node's id."""
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
    """Return a multicast between nodes that are named as in the topology.

    Whole copies are at `holders`, which are GPUs or the memories of hosts, and on the `disks` of hosts that are no
    holders. The `takers` have nothing yet. Raises CannotPlan for an id that the topology lacks.
    """
    sizes = tuple(block_bytes)
    every = tuple(range(len(sizes)))
    whole = frozenset(every)
    places = topology.places
    memories = {id: BlockSource(node_at(places, id), whole) for id in holders}
    reading = [BlockSource(node_at(places, id, on_disk=True), whole) for id in disks if id not in memories]
    return Multicast(
        block_bytes=sizes,
        sources=(*memories.values(), *reading),
        targets=tuple(BlockTarget(node_at(places, id), every) for id in takers),
        count=count,
        serving=tuple(serving),
    )


def node_at(places: Mapping[str, TopologyPlace], id: str, *, on_disk: bool = False) -> ClusterNode:
    """Return the GPU, host's memory or disk of this id. Raises CannotPlan if there is none."""
    if id not in places:
        raise CannotPlan(f"{id!r} is neither a GPU nor a host of the topology")
    at = places[id]
    if on_disk:
        return ClusterNode(id, "disk", at)
    return ClusterNode(id, "host" if at.domain is None else "worker", at)


def path_kind(sender: ClusterNode, receiver: ClusterNode) -> Over:
    """Return over which kind of link a flow between two nodes goes."""
    over = path_between(sender.at, receiver.at).over
    return "disk" if sender.place == "disk" and over != "network" else over


def serving_rates(multicast: Multicast) -> dict[tuple[str, str], float]:
    """Return what serving sends over each link, in bytes a second, by the link's kind with its direction, and its
    owner."""
    nics = multicast.nics
    rates: dict[tuple[str, str], float] = {}
    for flow in multicast.serving:
        owner = nics.get(flow.node, flow.node) if flow.over == "nic" else flow.node
        link = f"{flow.over}_{flow.direction}", owner
        rates[link] = rates.get(link, 0.0) + flow.rate
    return rates


class Traffic:
    """How busy serving keeps each link by direction, from measured rates and not from roles (BlitzScale 5.1)."""

    def __init__(self, multicast: Multicast) -> None:
        self._rates = serving_rates(multicast)
        self._used = {(flow.over, flow.direction) for flow in multicast.serving}

    def share(self, node: ClusterNode, direction: Direction, over: LinkKind = "nic") -> float:
        """Return the share of the link's bandwidth that serving takes in this direction."""
        if (over, direction) not in self._used:
            return 0.0
        owner, bandwidth = node.link(over, direction)
        rate = self._rates.get((f"{over}_{direction}", owner), 0.0)
        return rate / bandwidth if bandwidth else 0.0

    def is_busy(self, node: ClusterNode, direction: Direction, over: LinkKind = "nic") -> bool:
        """Say whether serving takes so much of a link that it is worth a detour."""
        return self.share(node, direction, over) > BUSY_SHARE
