"""Who can give a model to whom: the registry's picture of the pool as the plans see it. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from services.planner.plans.network import Multicast, Node, ServingFlow, Source, Target
from services.planner.plans.plan import CannotPlan
from services.planner.spares import find_alive
from shared.messages.membership import Holding, Snapshot, WorkerReport
from shared.messages.parameters import Manifest
from shared.topology_paths import Place


@dataclass(frozen=True)
class Supply:
    """The pool while some plans run. Who is in no place neither gives nor takes.

    `sending`: how many flows each node sends for them. `receiving`: workers that are going to have the whole version,
    and pass on what they have.
    """

    snapshot: Snapshot
    manifest: Manifest
    places: Mapping[str, Place]
    sending: Mapping[str, int] = field(default_factory=dict)
    receiving: Iterable[str] = ()

    @cached_property
    def _alive(self) -> frozenset[str]:
        return frozenset(find_alive(self.snapshot).keys() & self.places.keys())

    @cached_property
    def _every(self) -> frozenset[int]:
        return frozenset(range(len(self.manifest.blocks)))

    def multicast(self, missing: Mapping[str, Iterable[int]], avoid: Iterable[str] = ()) -> Multicast:
        """`missing` blocks to each target that is there, from all who hold the model or are going to; from whom to
        `avoid` only where nobody else does. Raises CannotPlan."""
        sources = [source for source in self._sources() if source.node.id not in missing] or self._reading()
        better = [source for source in sources if source.node.id not in set(avoid)]
        if not sources:
            raise CannotPlan("no worker or host holds the whole model in memory")
        if not self._alive & missing.keys():
            raise CannotPlan(f"{', '.join(sorted(missing))} cannot be reached")
        return Multicast(
            block_bytes=tuple(block.size_bytes for block in self.manifest.blocks),
            sources=tuple(better or sources),
            targets=tuple(Target(self._node(id), tuple(blocks)) for id, blocks in missing.items() if id in self._alive),
            serving=tuple(self._traffic()),
        )

    def describe(self, id: str) -> str:
        """What makes this node a source."""
        requests = {report.id: requests_of(report) for report in self.snapshot.workers if report.state == "serving"}
        if id in requests:
            return f"from {id}: a worker that holds the model and has {requests[id]} requests"
        if id in set(self.receiving):
            return f"from {id}: a worker that is receiving the model"
        return f"from {id}: a host that {'holds' if id in self._hosts(self._is_whole) else 'is reading'} the model"

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
        return [Source(self._node(id), self._every) for id in self._hosts(self._is_reading)]

    def _hosts(self, suits: Callable[[Holding], bool]) -> list[str]:
        return [one.id for one in self.snapshot.hosts if one.id in self._alive and any(map(suits, one.holdings))]

    def _traffic(self) -> Iterable[ServingFlow]:
        """A node that sends for a running plan has no bandwidth left."""
        workers = {report.id: report.flows_out for report in self.snapshot.workers}
        reported = workers | {report.id: report.flows_out for report in self.snapshot.hosts}
        for id in sorted(reported.keys() | self.sending.keys()):
            flows = max(reported.get(id, 0), self.sending.get(id, 0))
            if flows and id in self.places:
                yield ServingFlow(id, "out", flows * self.places[id].nic_out)

    def _node(self, id: str, requests: int = 0) -> Node:
        place = self.places[id]
        return Node(id, "host" if place.domain is None else "worker", place, requests)

    def _is_whole(self, holding: Holding | None) -> bool:
        version = self.manifest.version
        return holding is not None and holding.version == version and len(holding.ready) == holding.total

    def _is_reading(self, holding: Holding) -> bool:
        """It has begun, and is not waiting for its turn: the rest is coming."""
        return holding.version == self.manifest.version and bool(holding.ready)


def requests_of(report: WorkerReport) -> int:
    return 0 if report.load is None else report.load.running_requests + report.load.waiting_requests
