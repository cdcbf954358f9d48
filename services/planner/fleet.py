"""Which instances a model has, which of them a scale drains, and which spare workers a new one gets. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from livescale.services.planner.plans.plan import CannotPlan
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Member, ModelEntry, Snapshot, WorkerReport
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.scaling import Scale


class ModelView(NamedTuple):
    """The pool as it is now, and the model in question. `silent`: workers whose reports are old."""

    snapshot: Snapshot
    entry: ModelEntry
    manifest: Manifest
    silent: AbstractSet[str] = frozenset()

    @property
    def members(self) -> dict[str, Member]:
        """Every process of the cluster, by its id."""
        return {member.id: member for member in self.snapshot.members}

    @property
    def epochs(self) -> dict[str, int]:
        """Since which epoch each process is a member, by its id."""
        return {member.id: member.epoch for member in self.snapshot.members}


def check_target(asked: Scale, view: ModelView) -> None:
    """Raises Refusal 400 for more or fewer instances than the model may have, 409 for one that is being removed.

    The monitor may have to do with fewer, and with one more while an instance of another version is replaced.
    """
    spec = view.entry.spec
    least = spec.min_instances if asked.decision is None else 0
    most = spec.max_instances + (asked.decision is not None and asked.decision.rule == "version")
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
    """An instance that may be drained; its workers by rank, the requests it has, and which version it serves."""

    instance: str
    ranks: tuple[str, ...]
    requests: int
    version: str | None = None


@dataclass(frozen=True)
class ModelFleet:
    """`present`: instances that load, are live or serve, and are not being drained; with those that plans add."""

    present: frozenset[str]
    serving: tuple[ServingInstance, ...]


def count_fleet(
    model: str, workers: Iterable[WorkerReport], coming: AbstractSet[str], leaving: AbstractSet[str]
) -> ModelFleet:
    """`coming` and `leaving`: instance ids in running plans."""
    members = sorted((r for r in workers if r.model == model and r.instance), key=lambda r: (str(r.instance), r.rank))
    leaders = [r for r in members if r.rank == 0 and r.instance is not None and r.instance not in leaving]
    present = {str(r.instance) for r in leaders if r.state in ("loading", "live", "serving")}
    serving = find_instances({str(r.instance) for r in leaders if r.state == "serving"}, members)
    return ModelFleet(frozenset(present | coming), tuple(serving))


def find_instances(ids: AbstractSet[str], workers: Iterable[WorkerReport]) -> list[ServingInstance]:
    """Those of these instances that have not been given back yet."""
    members = sorted((r for r in workers if r.instance in ids), key=lambda r: (str(r.instance), r.rank))
    leaders = [r for r in members if r.rank == 0]
    return [
        ServingInstance(
            str(one.instance), tuple(r.id for r in members if r.instance == one.instance), requests_of(one), one.version
        )
        for one in leaders
    ]


def requests_of(report: WorkerReport) -> int:
    return 0 if report.load is None else report.load.running_requests + report.load.waiting_requests


def choose_to_drain(fleet: ModelFleet, count: int, version: str) -> Sequence[ServingInstance]:
    """The instances of other versions first, then those with the fewest requests; never one that still loads, nor the
    last that serves before the others do."""
    kept = 1 if len(fleet.present) > count else 0
    ordered = sorted(fleet.serving, key=lambda one: (one.version == version, one.requests, one.instance))
    return ordered[: min(count, len(fleet.serving) - kept)]


def find_alive(snapshot: Snapshot) -> dict[str, Member]:
    """Suspects take part in nothing new, nor does who has not told where to connect to."""
    return {member.id: member for member in snapshot.members if member.lease == "alive" and member.address}


def choose_spares(
    snapshot: Snapshot, model: ModelEntry, count: int, reserved: AbstractSet[str]
) -> tuple[list[list[str]], str]:
    """The ranks of up to `count` instances: spare workers that fit, spread over machines: the one with the fewest
    workers of the model comes next. Those that are `reserved` belong to running plans. Returns why, too. Raises
    CannotPlan where there are too few for one."""
    alive, ranks = find_alive(snapshot), model.spec.tensor_parallel_size
    spare = [r for r in snapshot.workers if r.state == "spare" and r.id in alive and r.id not in reserved]
    left = {r.id: alive[r.id].host for r in spare if r.arena_bytes >= model.rank_bytes}
    if len(left) < ranks:
        fit = "no spare worker fits" if ranks == 1 else f"an instance needs {ranks} spare workers, {len(left)} fit"
        raise CannotPlan(
            f"{fit}: {len(spare)} spare, {len(reserved)} in running plans, {model.rank_bytes} bytes of parameters"
        )
    crowd = Counter(alive[r.id].host for r in snapshot.workers if r.id in alive and r.model == model.spec.name)
    chosen: list[list[str]] = []
    while len(left) >= ranks and len(chosen) < count:
        chosen.append(_choose_ranks(left, ranks, crowd))
        crowd.update(left.pop(id) for id in chosen[-1])
    short = f"; {count - len(chosen)} more were wanted" if len(chosen) < count else ""
    return chosen, f"targets {', '.join(' + '.join(one) for one in chosen)}: spare, spread over machines{short}"


def _choose_ranks(left: Mapping[str, str], ranks: int, crowd: Mapping[str, int]) -> list[str]:
    """Workers of one machine where any has enough, as they exchange something in every layer; else of as few as can be:
    those that have most come first. `left`: the machine of each."""
    there = Counter(left.values())

    def order(id: str) -> tuple[bool, int, int, str, str]:
        machine = left[id]
        enough = there[machine] >= ranks
        return not enough, crowd[machine] if enough else 0, 0 if enough else -there[machine], machine, id

    return sorted(left, key=order)[:ranks] if ranks > 1 else [min(left, key=lambda id: (crowd[left[id]], id))]
