"""Which instances a model has, which of them a scale drains, and which spare workers a new one gets. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from livescale.services.planner.plans.plan import CannotPlan
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Member, Role, WorkerReport
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import ModelEntry, Snapshot
from livescale.shared.messages.scaling import Scale


class ModelView(NamedTuple):
    """What the planner knows when it plans for a model: the pool, and the model's entry and manifest.

    `silent` are the workers whose last report is too old to say what their links carry.
    """

    snapshot: Snapshot
    entry: ModelEntry
    manifest: Manifest
    silent: AbstractSet[str] = frozenset()

    @property
    def members(self) -> dict[str, Member]:
        """Every member of the cluster, of whatever service, by its id."""
        return {member.id: member for member in self.snapshot.members}

    @property
    def epochs(self) -> dict[str, int]:
        """The epoch in which each process joined, by its id."""
        return {member.id: member.epoch for member in self.snapshot.members}


def check_target(asked: Scale, view: ModelView, actual: int) -> None:
    """Check that the model, which has `actual` instances, may have as many as were asked for.

    Raises Refusal: 400 for more or fewer than its limits and for an adapter, 409 for a model that is being removed. The
    monitor may go below the minimum, and one above the maximum while an instance of another version is replaced. Where
    there are more than the maximum, as that was lowered, it gives them back one by one.
    """
    spec = view.entry.spec
    least, most = spec.min_instances, spec.max_instances
    if asked.decision is not None:
        least, most = 0, max(actual, most + (asked.decision.rule == "version"))
    if spec.base is not None:
        raise Refusal(400, f"{spec.name!r} is an adapter and has no instances; scale its base, {spec.base!r}")
    if view.entry.state == "removing" and asked.instances > 0:
        raise Refusal(409, f"model {spec.name!r} is being removed")
    if not least <= asked.instances <= most:
        raise Refusal(
            400,
            f"instances must be {spec.min_instances} to {spec.max_instances} for {spec.name!r}, not {asked.instances}; "
            "register the model again with other limits",
        )


@dataclass(frozen=True)
class ServingInstance:
    """An instance that serves: its workers by rank, how many requests it has, and which version it serves."""

    instance: str
    ranks: tuple[str, ...]
    requests: int
    version: str | None = None


@dataclass(frozen=True)
class ModelFleet:
    """The instances of one model.

    `present` are those that load, are live or serve and are not being drained, and those that plans are going to add.
    `serving` are those of them that serve.
    """

    present: frozenset[str]
    serving: tuple[ServingInstance, ...]


def count_fleet(
    model: str, workers: Iterable[WorkerReport], coming: AbstractSet[str], leaving: AbstractSet[str]
) -> ModelFleet:
    """Count the instances of a model; `coming` and `leaving` are the ids of those that running scales add and remove.

    One scale may drain what another has added and not yet seen to serve.
    """
    members = sorted((r for r in workers if r.model == model and r.instance), key=lambda r: (str(r.instance), r.rank))
    leaders = [r for r in members if r.rank == 0 and r.instance is not None and r.instance not in leaving]
    present = {str(r.instance) for r in leaders if r.state in ("loading", "live", "serving")}
    serving = find_instances({str(r.instance) for r in leaders if r.state == "serving"}, members)
    return ModelFleet(frozenset(present | (coming - leaving)), tuple(serving))


def find_instances(ids: AbstractSet[str], workers: Iterable[WorkerReport]) -> list[ServingInstance]:
    """Return those of these instances that still have workers."""
    members = sorted((r for r in workers if r.instance in ids), key=lambda r: (str(r.instance), r.rank))
    leaders = [r for r in members if r.rank == 0]
    return [
        ServingInstance(
            str(one.instance), tuple(r.id for r in members if r.instance == one.instance), requests_of(one), one.version
        )
        for one in leaders
    ]


def requests_of(report: WorkerReport) -> int:
    """Return how many requests a worker has, running or waiting."""
    return 0 if report.load is None else report.load.running_requests + report.load.waiting_requests


def choose_to_drain(
    fleet: ModelFleet,
    count: int,
    version: str,
    roles: Mapping[str, Role | None] = MappingProxyType({}),
    wanted: Mapping[Role, int] = MappingProxyType({}),
) -> Sequence[ServingInstance]:
    """Choose which instances to drain: those of other versions first, then those whose role has most beyond what is
    `wanted`, then those with the fewest requests. `roles` has the role of each instance.

    An instance that still loads is never drained. The last one that serves is not drained before the others serve.
    """
    # The last one that serves stays while others still load.
    kept = 1 if len(fleet.present) > count else 0
    left, numbers = list(fleet.serving), Counter(roles.values())

    def order(one: ServingInstance) -> tuple[bool, int, int, str]:
        role = roles.get(one.instance)
        beyond = 0 if role in (None, "colocated") else numbers[role] - wanted.get(role, 0)
        return one.version == version, -beyond, one.requests, one.instance

    chosen: list[ServingInstance] = []
    for _ in range(min(count, len(fleet.serving) - kept)):
        chosen.append(min(left, key=order))
        left.remove(chosen[-1])
        numbers[roles.get(chosen[-1].instance)] -= 1
    return chosen


def find_alive(snapshot: Snapshot) -> dict[str, Member]:
    """Return the members that can take part in something new, by id.

    Suspects cannot, nor can processes that have not told at which address they are reached.
    """
    return {member.id: member for member in snapshot.members if member.lease == "alive" and member.address}


def choose_spares(
    snapshot: Snapshot, model: ModelEntry, count: int, reserved: AbstractSet[str]
) -> tuple[list[list[str]], str]:
    """Choose the workers of up to `count` new instances, and say why.

    A worker must be spare, big enough, and not `reserved` by a running plan. Those that have the parameters still come
    first, then the machine with the fewest workers of the model; what is kept of other models stays if possible.
    Returns the workers of each instance by rank, and a reason. Raises CannotPlan if there are too few for one instance.
    """
    alive, ranks = find_alive(snapshot), model.spec.tensor_parallel_size
    spare = [r for r in snapshot.workers if r.state == "spare" and r.id in alive and r.id not in reserved]
    left = {r.id: alive[r.id].host for r in spare if r.arena_bytes >= model.rank_bytes}
    if len(left) < ranks:
        fit = "no spare worker fits" if ranks == 1 else f"an instance needs {ranks} spare workers, {len(left)} fit"
        raise CannotPlan(
            f"{fit}: {len(spare)} spare, {len(reserved)} in running plans, {model.rank_bytes} bytes of parameters"
        )
    crowd = Counter(alive[r.id].host for r in snapshot.workers if r.id in alive and r.model == model.spec.name)
    parked = {r.id: r.parked == model.version for r in spare if r.parked is not None}
    chosen: list[list[str]] = []
    while len(left) >= ranks and len(chosen) < count:
        chosen.append(_choose_ranks(left, ranks, crowd) if ranks > 1 else [_choose_one(left, crowd, parked)])
        crowd.update(left.pop(id) for id in chosen[-1])
    short = f"; {count - len(chosen)} more were wanted" if len(chosen) < count else ""
    return chosen, f"targets {', '.join(' + '.join(one) for one in chosen)}: spare, spread over machines{short}"


def find_parked(snapshot: Snapshot, version: str) -> frozenset[str]:
    """Return the spare workers that have all parameters of this version still."""
    return frozenset(one.id for one in snapshot.workers if one.state == "spare" and one.parked == version)


def _choose_one(left: Mapping[str, str], crowd: Mapping[str, int], parked: Mapping[str, bool]) -> str:
    """Choose a worker. `left`: the machine of each that is free; `parked`: whether what one has is of this model."""
    return min(left, key=lambda id: (not parked.get(id, False), crowd[left[id]], id in parked, id))


def _choose_ranks(left: Mapping[str, str], ranks: int, crowd: Mapping[str, int]) -> list[str]:
    """Choose the workers of one instance. `left`: the machine of each worker that is free.

    All are of one machine if possible, as ranks exchange something in every layer, else of as few machines as can be:
    those with the most free workers come first.
    """
    there = Counter(left.values())

    def order(id: str) -> tuple[bool, int, int, str, str]:
        machine = left[id]
        enough = there[machine] >= ranks
        return not enough, crowd[machine] if enough else 0, 0 if enough else -there[machine], machine, id

    return sorted(left, key=order)[:ranks]
