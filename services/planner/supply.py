"""Who can give a model to whom: the registry's picture of the pool as the plans see it. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property

from livescale.services.planner.plans.network import Multicast, Node, ServingFlow, Source, Target, way
from livescale.services.planner.plans.plan import CannotPlan, Flow, TransferPlan
from livescale.services.planner.serving_traffic import find_traffic
from livescale.services.planner.spares import find_alive
from livescale.shared.messages.membership import Holding, WorkerReport
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import Snapshot
from livescale.shared.messages.transfers import Flow as PlanFlow
from livescale.shared.topology.paths import TopologyPlace


@dataclass(frozen=True)
class Supply:
    """The pool while some plans run. Who is in no place neither gives nor takes.

    `sending`: how many flows each node sends for them. `receiving`: workers that are going to have the whole version,
    and pass on what they have. `silent`: whose reports are old.
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
        """`missing` blocks to each target that is there, from all who hold the model or are going to; from whom to
        `avoid` only where nobody else does. With `disks` every other host may read it. Raises CannotPlan."""
        sources = [source for source in self._sources() if source.node.id not in missing]
        if disks:
            sources += self._disks()
        elif not sources:
            sources = self._reading()
        better = [source for source in sources if source.node.id not in set(avoid)]
        if not sources:
            raise CannotPlan("no worker or host holds the whole model in memory")
        if not self._alive & missing.keys():
            raise CannotPlan(f"{', '.join(sorted(missing))} cannot be reached")
        return Multicast(
            block_bytes=self._block_bytes,
            sources=tuple(better or sources),
            targets=tuple(Target(self._node(id), tuple(blocks)) for id, blocks in missing.items() if id in self._alive),
            serving=(*find_traffic(self.snapshot, self.places, self.silent), *self._plans()),
        )

    def rest(self, flows: Iterable[PlanFlow], missing: Mapping[str, Sequence[int]]) -> tuple[Multicast, TransferPlan]:
        """What is left of a plan that runs, where `missing` blocks are all that its receivers lack."""
        placed = [flow for flow in flows if {flow.sender, flow.receiver} <= self.places.keys()]
        left = [part for flow in placed if (part := self._left_of(flow, missing[flow.receiver])).blocks]
        receivers = dict.fromkeys(flow.receiver for flow in left)
        senders = dict.fromkeys(flow.sender for flow in left if flow.sender not in receivers)
        disks = {flow.sender for flow in placed if flow.from_disk}
        multicast = Multicast(
            block_bytes=self._block_bytes,
            sources=tuple(Source(self._node(id, on_disk=id in disks), self._every) for id in senders),
            targets=tuple(Target(self._node(id), tuple(missing[id])) for id in receivers),
            serving=tuple(find_traffic(self.snapshot, self.places, self.silent)),
        )
        return multicast, TransferPlan(policy="chains", flows=tuple(left), targets=tuple(receivers), tails=())

    def _left_of(self, flow: PlanFlow, missing: Sequence[int]) -> Flow:
        lacks, blocks = frozenset(missing), flow.blocks or sorted(self._every)
        kept = [place for place, block in enumerate(blocks) if block in lacks]
        over = way(self._node(flow.sender, on_disk=flow.from_disk), self._node(flow.receiver))
        steps = tuple(flow.steps[place] for place in kept) if flow.steps else ()
        own = tuple(blocks[place] for place in kept)
        return Flow(flow.sender, flow.receiver, own, flow.lane, flow.lanes, over, steps)

    @cached_property
    def _block_bytes(self) -> tuple[int, ...]:
        return tuple(block.size_bytes for block in self.manifest.blocks)

    def describe(self, id: str) -> str:
        """What makes this node a source."""
        requests = {report.id: requests_of(report) for report in self.snapshot.workers if report.state == "serving"}
        if id in requests:
            return f"from {id}: a worker that holds the model and has {requests[id]} requests"
        if id in set(self.receiving):
            return f"from {id}: a worker that is receiving the model"
        if id in self._hosts(self._is_whole):
            return f"from {id}: a host that holds the model"
        how = "is reading the model" if id in self._hosts(self._is_reading) else "reads the model from its disk"
        return f"from {id}: a host that {how}"

    def _sources(self) -> list[Source]:
        serving = {
            report.id: requests_of(report)
            for report in self.snapshot.workers
            if report.id in self._alive and report.state == "serving" and self._is_whole(report.holding)
        }
        ids = [*serving, *sorted(self._alive.intersection(self.receiving)), *self._hosts(self._is_whole)]
        return [Source(self._node(id, serving.get(id, 0)), self._every) for id in ids]

    def _reading(self) -> list[Source]:
        """Hosts that are going to have it: only where nobody else does, for disks are slower than memory."""
        return [Source(self._node(id, on_disk=True), self._every) for id in self._hosts(self._is_reading)]

    def _disks(self) -> list[Source]:
        """Of hosts that do not hold it."""
        ids = sorted(one.id for one in self.snapshot.hosts if one.id in self._alive)
        having = set(self._hosts(self._is_whole))
        return [Source(self._node(id, on_disk=True), self._every) for id in ids if id not in having]

    def _hosts(self, suits: Callable[[Holding], bool]) -> list[str]:
        return [one.id for one in self.snapshot.hosts if one.id in self._alive and any(map(suits, one.holdings))]

    def _plans(self) -> Iterable[ServingFlow]:
        """A node that sends for running plans shares its NIC with them."""
        workers = {report.id: report.flows_out for report in self.snapshot.workers}
        reported = workers | {report.id: report.flows_out for report in self.snapshot.hosts}
        for id in sorted(reported.keys() | self.sending.keys()):
            flows = max(reported.get(id, 0), self.sending.get(id, 0))
            if flows and id in self.places:
                yield ServingFlow(id, "out", flows / (flows + 1) * self.places[id].nic_out)

    def _node(self, id: str, requests: int = 0, *, on_disk: bool = False) -> Node:
        place = self.places[id]
        return Node(id, "disk" if on_disk else "host" if place.domain is None else "worker", place, requests)

    def _is_whole(self, holding: Holding | None) -> bool:
        """A host holds all shards, a worker its own."""
        held = self.manifest.version, self.manifest.held_as
        return holding is not None and holding.version in held and len(holding.ready) == holding.total

    def _is_reading(self, holding: Holding) -> bool:
        """It has begun, and is not waiting for its turn: the rest is coming."""
        return holding.version == self.manifest.version and bool(holding.ready)


def requests_of(report: WorkerReport) -> int:
    return 0 if report.load is None else report.load.running_requests + report.load.waiting_requests
