"""From the registry's picture to a plan: who sends the parameters to whom. Pure.

One serial forwarding chain (BlitzScale 5.1): source -> target 1 -> target 2 -> ... Every target forwards chunks as
they arrive, so more targets hardly take longer, and the source sends everything once.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from shared.messages.membership import Holding, Member, ModelEntry, Snapshot, WorkerReport
from shared.messages.parameters import Place
from shared.messages.scaling import Chain, Plan, PlannedInstance


class CannotPlan(Exception):
    """No plan is possible now; says why."""


@dataclass(frozen=True)
class PlanIds:
    """Fresh ids: the plan's, and one for each instance that is wanted."""

    plan: str
    instances: Sequence[str]


@dataclass(frozen=True)
class Source:
    """Somebody who holds the whole model. The one with the fewest flows comes first, of equals a worker."""

    id: str
    place: Place
    flows: int
    load: int

    @property
    def order(self) -> tuple[int, bool, int, str]:
        return self.flows, self.place == "host", self.load, self.id


def plan_chain(
    snapshot: Snapshot,
    model: ModelEntry,
    version: str,
    ids: PlanIds,
    reserved: AbstractSet[str] = frozenset(),
    flows: Mapping[str, int] | None = None,
) -> Plan:
    """A plan for as many of `ids.instances` as there are spare workers, at least one.

    `reserved` workers belong to running plans; `flows` counts what running plans have each source send. Raises
    CannotPlan.
    """
    source, why_source = _choose_source(snapshot, version, flows or {})
    targets, why_targets = _choose_targets(snapshot, model, len(ids.instances), reserved)
    instances = [PlannedInstance(id=id, ranks=[worker]) for id, worker in zip(ids.instances, targets, strict=False)]
    return Plan(
        id=ids.plan,
        model=model.spec.name,
        version=version,
        instances=instances,
        chains=[Chain(source=source.id, targets=targets)],
        size_bytes=model.size_bytes,
        reasons=[why_source, why_targets],
    )


def _choose_source(snapshot: Snapshot, version: str, flows: Mapping[str, int]) -> tuple[Source, str]:
    sources = sorted(find_sources(snapshot, version, flows), key=lambda source: source.order)
    if not sources:
        raise CannotPlan("no worker or host holds the whole model in memory")
    best = sources[0]
    others = f"of {len(sources)} that hold the model" if len(sources) > 1 else "the only one that holds the model"
    return best, f"source {best.id}: a {best.place} with {best.flows} flows out and {best.load} requests, {others}"


def find_sources(snapshot: Snapshot, version: str, flows: Mapping[str, int]) -> list[Source]:
    """Everyone alive who holds the whole version and is going to keep it."""
    alive = _alive(snapshot)
    workers = [
        Source(report.id, "worker", max(report.flows_out, flows.get(report.id, 0)), _requests(report))
        for report in snapshot.workers
        if report.id in alive and report.state == "serving" and _is_whole(report.holding, version)
    ]
    hosts = [
        Source(report.id, "host", max(report.flows_out, flows.get(report.id, 0)), 0)
        for report in snapshot.hosts
        if report.id in alive and any(_is_whole(holding, version) for holding in report.holdings)
    ]
    return workers + hosts


def plan_rest(
    snapshot: Snapshot,
    version: str,
    targets: Sequence[str],
    hops: Mapping[str, int],
    avoid: AbstractSet[str],
    flows: Mapping[str, int],
) -> tuple[Chain, str]:
    """A chain for targets whose transfer broke off: from whoever holds the model, or is going to have passed it on.

    `hops` still receive for the same plan, and have so many children; those to `avoid` were just lost as an upstream
    and come last. The targets keep their order: who was ahead has more to pass on. Returns why, too. Raises CannotPlan.
    """
    alive = _alive(snapshot)
    passing = [Source(id, "worker", children, 0) for id, children in hops.items() if id in alive]
    holding = find_sources(snapshot, version, flows)
    candidates = [source for source in holding + passing if source.id not in targets]
    if not candidates:
        raise CannotPlan("no worker or host holds the whole model in memory")
    best = min(candidates, key=lambda source: (source.id in avoid, source.order))
    does = "passes on what it receives" if best in passing else f"holds the model, with {best.flows} flows out"
    return Chain(source=best.id, targets=list(targets)), f"now from {best.id}: a {best.place} that {does}"


def _is_whole(holding: Holding | None, version: str) -> bool:
    return holding is not None and holding.version == version and len(holding.ready) == holding.total


def _requests(report: WorkerReport) -> int:
    return 0 if report.load is None else report.load.running_requests + report.load.waiting_requests


def _alive(snapshot: Snapshot) -> dict[str, Member]:
    """Suspects take part in nothing new, nor does who has not told where to connect to."""
    return {member.id: member for member in snapshot.members if member.lease == "alive" and member.address}


def _choose_targets(
    snapshot: Snapshot, model: ModelEntry, count: int, reserved: AbstractSet[str]
) -> tuple[list[str], str]:
    """Spare workers that fit, spread over machines: the one with the fewest instances of the model comes next."""
    alive = _alive(snapshot)
    spare = [r for r in snapshot.workers if r.state == "spare" and r.id in alive and r.id not in reserved]
    left = {r.id: alive[r.id].host for r in spare if r.arena_bytes >= model.size_bytes}
    if not left:
        raise CannotPlan(
            f"no spare worker fits: {len(spare)} spare, {len(reserved)} in running plans, "
            f"{model.size_bytes} bytes of parameters"
        )
    crowd = Counter(alive[r.id].host for r in snapshot.workers if r.id in alive and r.model == model.spec.name)
    targets: list[str] = []
    while left and len(targets) < count:
        chosen = min(left, key=lambda id: (crowd[left[id]], id))
        crowd[left.pop(chosen)] += 1
        targets.append(chosen)
    short = f"; {count - len(targets)} more were wanted" if len(targets) < count else ""
    return targets, f"targets {', '.join(targets)}: spare, spread over machines{short}"
