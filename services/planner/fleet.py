"""How many instances of a model there are, counting what running plans will add and take away. Pure."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from livescale.shared.messages.membership import WorkerReport


@dataclass(frozen=True)
class Serving:
    """An instance that may be drained; its workers by rank, the requests it has, and which version it serves."""

    instance: str
    ranks: tuple[str, ...]
    requests: int
    version: str | None = None


@dataclass(frozen=True)
class Fleet:
    """`present`: instances that load, are live or serve, and are not being drained; with those that plans add."""

    present: frozenset[str]
    serving: tuple[Serving, ...]


def count_fleet(
    model: str, workers: Iterable[WorkerReport], coming: AbstractSet[str], leaving: AbstractSet[str]
) -> Fleet:
    """`coming` and `leaving`: instance ids in running plans."""
    members = sorted((r for r in workers if r.model == model and r.instance), key=lambda r: (str(r.instance), r.rank))
    leaders = [r for r in members if r.rank == 0 and r.instance is not None and r.instance not in leaving]
    present = {str(r.instance) for r in leaders if r.state in ("loading", "live", "serving")}
    serving = find_instances({str(r.instance) for r in leaders if r.state == "serving"}, members)
    return Fleet(frozenset(present | coming), tuple(serving))


def find_instances(ids: AbstractSet[str], workers: Iterable[WorkerReport]) -> list[Serving]:
    """Those of these instances that have not been given back yet."""
    members = sorted((r for r in workers if r.instance in ids), key=lambda r: (str(r.instance), r.rank))
    leaders = [r for r in members if r.rank == 0]
    return [
        Serving(
            str(one.instance), tuple(r.id for r in members if r.instance == one.instance), _requests(one), one.version
        )
        for one in leaders
    ]


def _requests(report: WorkerReport) -> int:
    return 0 if report.load is None else report.load.running_requests + report.load.waiting_requests


def choose_to_drain(fleet: Fleet, count: int, version: str) -> Sequence[Serving]:
    """The instances of other versions first, then those with the fewest requests; never one that still loads, nor the
    last that serves before the others do."""
    kept = 1 if len(fleet.present) > count else 0
    ordered = sorted(fleet.serving, key=lambda one: (one.version == version, one.requests, one.instance))
    return ordered[: min(count, len(fleet.serving) - kept)]
