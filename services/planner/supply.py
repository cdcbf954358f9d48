"""Which nodes can give a model to which others: the registry's snapshot as plans need it. Pure.

Here are also the places of workers and hosts in the cluster, and what serving moves over which links: as both ends
measured it, otherwise as roles suggest.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from msgspec.structs import replace

from livescale.services.planner.fleet import find_alive, requests_of
from livescale.services.planner.plans.plan import (
    BlockSource,
    BlockTarget,
    CannotPlan,
    ClusterNode,
    Direction,
    LinkKind,
    Multicast,
    ServingFlow,
    TransferFlow,
    TransferPlan,
    path_kind,
)
from livescale.shared.messages.membership import Holding, Member, Role, WorkerReport
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import Snapshot
from livescale.shared.messages.transfers import Flow
from livescale.shared.topology.paths import Resource, TopologyPlace, path_between
from livescale.shared.topology.topology import ASSUMED_DISK, ASSUMED_MEMORY, ASSUMED_NIC, Topology

# A prefill instance sends the KV that it makes to a decode instance (BlitzScale 5.1).
DIRECTIONS: Mapping[Role | None, Direction] = {"prefill": "out", "decode": "in"}
NodePair = tuple[str, str]  # the sender and the receiver


@dataclass(frozen=True)
class Supply:
    """The nodes that hold a shard of a model, and the traffic on their links, while some plans run.

    A process without a place in the cluster neither gives nor takes. `sending` counts the flows that each node sends
    for running plans. `receiving` are workers that are going to have the whole shard, and pass on what they have.
    `silent` are workers whose reports are old.
    """

    snapshot: Snapshot
    manifest: Manifest
    places: Mapping[str, TopologyPlace]
    sending: Mapping[str, int] = field(default_factory=dict)
    receiving: Iterable[str] = ()
    silent: AbstractSet[str] = frozenset()

    @cached_property
    def _alive(self) -> frozenset[str]:
        return frozenset(find_alive(self.snapshot).keys() & self.places.keys())

    @cached_property
    def _every(self) -> frozenset[int]:
        return frozenset(range(len(self.manifest.blocks)))

    def multicast(
        self, missing: Mapping[str, Iterable[int]], avoid: Iterable[str] = (), *, disks: bool = False
    ) -> Multicast:
        """Return a multicast of the `missing` blocks to each target that can be reached, from all that hold the model.

        Sources are those that hold it or are receiving it; those to `avoid` only if there are no others. With `disks`
        every other host may read it from its disk. Raises CannotPlan.
        """
        sources = [source for source in self._sources() if source.node.id not in missing]
        if disks:
            sources += self._disks()
        elif not sources:
            sources = self._reading()
        better = [source for source in sources if source.node.id not in set(avoid)]
        if not sources:
            raise CannotPlan("no worker or host has the whole model in memory")
        if not self._alive & missing.keys():
            raise CannotPlan(f"{', '.join(sorted(missing))} cannot be reached")
        return Multicast(
            block_bytes=self._block_bytes,
            sources=tuple(better or sources),
            targets=tuple(
                BlockTarget(self._node(id), tuple(blocks)) for id, blocks in missing.items() if id in self._alive
            ),
            serving=(*find_traffic(self.snapshot, self.places, self.silent), *self._plans()),
        )

    def rest(self, flows: Iterable[Flow], missing: Mapping[str, Sequence[int]]) -> tuple[Multicast, TransferPlan]:
        """Return what is left of a running plan, whose receivers lack only these `missing` blocks."""
        placed = [flow for flow in flows if {flow.sender, flow.receiver} <= self.places.keys()]
        left = [part for flow in placed if (part := self._left_of(flow, missing[flow.receiver])).blocks]
        receivers = dict.fromkeys(flow.receiver for flow in left)
        senders = dict.fromkeys(flow.sender for flow in left if flow.sender not in receivers)
        disks = {flow.sender for flow in placed if flow.from_disk}
        multicast = Multicast(
            block_bytes=self._block_bytes,
            sources=tuple(BlockSource(self._node(id, on_disk=id in disks), self._every) for id in senders),
            targets=tuple(BlockTarget(self._node(id), tuple(missing[id])) for id in receivers),
            serving=tuple(find_traffic(self.snapshot, self.places, self.silent)),
        )
        return multicast, TransferPlan(policy="chains", flows=tuple(left), targets=tuple(receivers), tails=())

    def _left_of(self, flow: Flow, missing: Sequence[int]) -> TransferFlow:
        lacks, blocks = frozenset(missing), flow.blocks or sorted(self._every)
        kept = [place for place, block in enumerate(blocks) if block in lacks]
        over = path_kind(self._node(flow.sender, on_disk=flow.from_disk), self._node(flow.receiver))
        steps = tuple(flow.steps[place] for place in kept) if flow.steps else ()
        own = tuple(blocks[place] for place in kept)
        return TransferFlow(flow.sender, flow.receiver, own, flow.lane, flow.lanes, over, steps)

    @cached_property
    def _block_bytes(self) -> tuple[int, ...]:
        return tuple(block.size_bytes for block in self.manifest.blocks)

    def describe(self, id: str) -> str:
        """Return a reason that says why this node can be a source."""
        requests = {report.id: requests_of(report) for report in self.snapshot.workers if report.state == "serving"}
        if id in requests:
            return f"from {id}: a worker that holds the model and has {requests[id]} requests"
        if id in set(self.receiving):
            return f"from {id}: a worker that is receiving the model"
        if id in self._hosts(self._is_whole):
            return f"from {id}: a host that holds the model"
        how = "is reading the model" if id in self._hosts(self._is_reading) else "reads the model from its disk"
        return f"from {id}: a host that {how}"

    def _sources(self) -> list[BlockSource]:
        serving = {
            report.id: requests_of(report)
            for report in self.snapshot.workers
            if report.id in self._alive and report.state == "serving" and self._is_whole(report.holding)
        }
        prefills = {report.id for report in self.snapshot.workers if report.role == "prefill"}
        ids = [*serving, *sorted(self._alive.intersection(self.receiving)), *self._hosts(self._is_whole)]
        nodes = (replace(self._node(id, serving.get(id, 0)), prefills=id in prefills) for id in ids)
        return [BlockSource(node, self._every) for node in nodes]

    def _reading(self) -> list[BlockSource]:
        """Return the hosts that are reading it, which count only where no other holds it: disks are slower than
        memory."""
        return [BlockSource(self._node(id, on_disk=True), self._every) for id in self._hosts(self._is_reading)]

    def _disks(self) -> list[BlockSource]:
        """Return the disks of the hosts that do not hold it in memory."""
        ids = sorted(one.id for one in self.snapshot.hosts if one.id in self._alive)
        having = set(self._hosts(self._is_whole))
        return [BlockSource(self._node(id, on_disk=True), self._every) for id in ids if id not in having]

    def _hosts(self, suits: Callable[[Holding], bool]) -> list[str]:
        return [one.id for one in self.snapshot.hosts if one.id in self._alive and any(map(suits, one.holdings))]

    def _plans(self) -> Iterable[ServingFlow]:
        """Yield the load that running plans put on NICs: a node's new flow has to share with those that it sends."""
        workers = {report.id: report.flows_out for report in self.snapshot.workers}
        reported = workers | {report.id: report.flows_out for report in self.snapshot.hosts}
        for id in sorted(reported.keys() | self.sending.keys()):
            flows = max(reported.get(id, 0), self.sending.get(id, 0))
            if flows and id in self.places:
                # A new flow would get an equal share of the NIC.
                yield ServingFlow(id, "out", flows / (flows + 1) * self.places[id].nic_out)

    def _node(self, id: str, requests: int = 0, *, on_disk: bool = False) -> ClusterNode:
        place = self.places[id]
        return ClusterNode(id, "disk" if on_disk else "host" if place.domain is None else "worker", place, requests)

    def _is_whole(self, holding: Holding | None) -> bool:
        """Say whether all of it is held: a host holds all shards, a worker its own."""
        held = self.manifest.version, self.manifest.held_as
        return holding is not None and holding.version in held and holding.is_whole

    def _is_reading(self, holding: Holding) -> bool:
        """Say whether a host has begun to read it, so that the rest is coming, and is not waiting for its turn."""
        return holding.version == self.manifest.version and bool(holding.ready)


def find_places(
    members: Iterable[Member], topology: Topology | None, link_rate: float = 0.0
) -> dict[str, TopologyPlace]:
    """Return the places of workers and hosts in the cluster by their ids. A process that the topology lacks is left
    out.

    Without a topology each machine is a host, its workers are one domain, and rates are assumed. With a `link_rate`, in
    bytes a second, each process is a host of its own, as links are then shaped by process. All that leaves it shares
    one link of that rate, also what goes to others of its machine. No way between them is faster, and they share
    nothing.
    """
    placed = [member for member in members if member.service in ("worker", "host")]
    if topology is not None:
        places = topology.places
        return {member.id: places[place] for member in placed if (place := member.place or "") in places}
    if link_rate:
        return {member.id: assumed_place(member, member.id, link_rate) for member in placed}
    return {member.id: assumed_place(member, member.host, ASSUMED_NIC) for member in placed}


def assumed_place(member: Member, host: str, nic: float) -> TopologyPlace:
    """Return a place for a process without a topology: one NIC of this rate, and the assumed rates for the rest."""
    return TopologyPlace(
        id=member.id,
        host=host,
        leaf="leaf0",
        domain=host if member.service == "worker" else None,
        nic=host,
        nic_in=nic,
        nic_out=nic,
        uplink_in=0.0,
        uplink_out=0.0,
        domain_bandwidth=ASSUMED_MEMORY,
        host_link=ASSUMED_MEMORY,
        disk=ASSUMED_DISK,
        machine=member.host,
    )


def find_traffic(snapshot: Snapshot, places: Mapping[str, TopologyPlace], silent: Collection[str]) -> list[ServingFlow]:
    """Return what serving moves over each link on its way from worker to worker.

    Workers that are `silent` or do not measure are taken by their role alone.
    """
    reports = [report for report in snapshot.workers if report.id in places]
    known = [report for report in reports if is_known(report, silent)]
    by_link: dict[Resource, float] = {}
    for (sender, receiver), rate in measured_rates(known, snapshot).items():
        if sender in places and receiver in places:
            for link in path_between(places[sender], places[receiver]).resources:
                by_link[link] = by_link.get(link, 0.0) + rate
    measured = [as_flow(link, rate) for link, rate in by_link.items() if rate]
    return [*measured, *assumed_traffic((report for report in reports if not is_known(report, silent)), places)]


def is_known(report: WorkerReport, silent: Collection[str]) -> bool:
    """Say whether it is known what this worker's serving moves."""
    return report.traffic is not None and report.id not in silent


def measured_rates(reports: Iterable[WorkerReport], snapshot: Snapshot) -> dict[NodePair, float]:
    """Return bytes a second by sender and receiver. Where the two ends measured different rates, the higher one
    counts."""
    ids = {member.address: member.id for member in snapshot.members}
    rates: dict[NodePair, float] = {}
    for report in reports:
        for each in report.traffic or ():
            peer = ids.get(each.peer)
            if peer is not None:  # a process that has left receives nothing any more
                sent, received = (report.id, peer), (peer, report.id)
                rates[sent] = max(rates.get(sent, 0.0), each.sent)
                rates[received] = max(rates.get(received, 0.0), each.received)
    return rates


def as_flow(link: Resource, rate: float) -> ServingFlow:
    """Return a rate over a link as the serving flow that plans go by."""
    over, _, direction = link.kind.partition("_")
    return ServingFlow(link.owner, cast("Direction", direction), rate, cast("LinkKind", over))


def assumed_traffic(reports: Iterable[WorkerReport], places: Mapping[str, TopologyPlace]) -> Iterator[ServingFlow]:
    """Yield the traffic that a role suggests: all of the NIC in the direction in which it moves KV."""
    for report in reports:
        if report.role in DIRECTIONS:
            at, direction = places[report.id], DIRECTIONS[report.role]
            yield ServingFlow(at.nic, direction, at.nic_out if direction == "out" else at.nic_in)


def explain_unknown(snapshot: Snapshot, silent: Collection[str]) -> list[str]:
    """Return a reason for each instance's worker whose traffic is taken by its role."""
    unknown = [one for one in snapshot.workers if one.instance is not None and not is_known(one, silent)]
    return [
        f"the traffic of {one.id} is not known ({'it is silent' if one.id in silent else 'it measures none'}): "
        f"taken by its role, {one.role}, as {_say(one.role)}"
        for one in unknown
    ]


def _say(role: Role | None) -> str:
    return f"all of its NIC {DIRECTIONS[role]}" if role in DIRECTIONS else "none"
