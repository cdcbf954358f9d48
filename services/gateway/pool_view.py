"""What the registry's snapshot says about models and instances: pure."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from livescale.services.gateway.answers import Instance, ModelStatus
from livescale.shared.messages.membership import WorkerReport, WorkerState
from livescale.shared.messages.registry import ModelEntry, Snapshot
from livescale.shared.model.latency import MADE_UP

# From the least to the most advanced: an instance is as far as its slowest rank, but for one that is live: then only
# the rank that leads says so.
ORDER: tuple[WorkerState, ...] = ("spare", "draining", "loading", "live", "serving")


def instances(snapshot: Snapshot) -> list[Instance]:
    """By id."""
    ranks: dict[str, list[WorkerReport]] = {}
    for worker in snapshot.workers:
        if worker.instance is not None and worker.model is not None:
            ranks.setdefault(worker.instance, []).append(worker)
    return [_instance(id, sorted(workers, key=lambda one: (one.rank, one.id))) for id, workers in sorted(ranks.items())]


def _instance(id: str, ranks: Sequence[WorkerReport]) -> Instance:
    holdings = [worker.holding for worker in ranks if worker.holding is not None]
    return Instance(
        id=id,
        model=ranks[0].model or "",
        role=ranks[0].role,
        state="live" if ranks[0].state == "live" else min((worker.state for worker in ranks), key=ORDER.index),
        workers=[worker.id for worker in ranks],
        ready_blocks=sum(len(holding.ready) for holding in holdings),
        total_blocks=sum(holding.total for holding in holdings),
    )


def status(entry: ModelEntry, snapshot: Snapshot | None) -> ModelStatus:
    """Without a snapshot the state is unknown, not cold."""
    if entry.state == "failed":
        return ModelStatus(state="failed", instances=0, error=entry.error)
    if snapshot is None:
        return ModelStatus(state=None, instances=None)
    states = [one.state for one in instances(snapshot) if one.model == entry.spec.name]
    answering = sum(state in ("serving", "live") for state in states)
    made_up = warning([worker for worker in snapshot.workers if worker.model == entry.spec.name])
    if "serving" in states:
        return ModelStatus(state="ready", instances=answering, warning=made_up)
    if "live" in states:
        return ModelStatus(state="live", instances=answering, warning=made_up)
    return ModelStatus(state="loading" if "loading" in states else "cold", instances=0)


def warning(workers: Sequence[WorkerReport]) -> str | UnsetType:
    """Where one of them makes its tokens up."""
    return MADE_UP if any(worker.engine == "modelled" for worker in workers) else UNSET


def router_is_there(snapshot: Snapshot) -> bool:
    return any(member.service == "router" and member.lease == "alive" for member in snapshot.members)


def why_unavailable(connected: bool, snapshot: Snapshot | None, ready_models: Sequence[str]) -> str | None:
    """None where a request can be answered, or held by the router while an instance starts."""
    if not connected:
        return "the bus is disconnected"
    if snapshot is None:
        return "the registry does not answer"
    if not router_is_there(snapshot):
        return "no router is alive"
    return None if ready_models else "no model is ready"
