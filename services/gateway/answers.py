"""Answers about models, instances and the gateway itself, and how they are made from the registry's snapshot. Pure."""

from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from livescale.shared.messages.membership import Role, WorkerReport, WorkerState
from livescale.shared.messages.registry import ModelEntry, Snapshot
from livescale.shared.messages.scaling import Decision
from livescale.shared.model.latency import MADE_UP

T = TypeVar("T")

# From the least to the most advanced. An instance is as far as its slowest rank; only a live instance is as far as its
# leading rank, as no other rank reports that state.
ORDER: tuple[WorkerState, ...] = ("spare", "draining", "loading", "live", "serving")


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a model stands in the cluster; null is unknown. `instances` counts those that take requests; `warning` is
    there where answers are made up."""

    state: Literal["cold", "loading", "live", "ready", "failed"] | None
    instances: int | None
    error: str | None = None
    warning: str | UnsetType = UNSET


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's model object, vLLM's `root`, `parent` and `max_model_len`, and our `livescale`."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "livescale"
    root: str
    parent: str | None = None
    max_model_len: int
    permission: list[None] = []
    livescale: ModelStatus


class Listing(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A list of objects, wrapped as OpenAI does."""

    object: Literal["list"] = "list"
    data: list[T]


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance: its workers, rank 0 first, and the least advanced of their states."""

    id: str
    model: str
    role: Role | None
    state: WorkerState
    workers: list[str]
    ready_blocks: int
    total_blocks: int


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway can reach; `reason` says why it cannot serve, and `warning` is there where answers are made
    up."""

    status: Literal["ok", "unavailable"]
    bus: bool
    router: bool
    models: list[str]
    reason: str | None = None
    warning: str | UnsetType = UNSET


class Live(msgspec.Struct, frozen=True):
    """The answer of /live: the process runs and answers."""

    status: Literal["ok"] = "ok"


class Version(msgspec.Struct, frozen=True):
    """The version of livescale that this gateway runs."""

    version: str


CardList = Listing[ModelCard]
EntryList = Listing[ModelEntry]
InstanceList = Listing[Instance]
DecisionList = Listing[Decision]


def instances(snapshot: Snapshot) -> list[Instance]:
    """All instances in the registry's snapshot, in the order of their ids."""
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
    """The state of a model. Without a snapshot it is unknown, which does not mean that nothing is loaded."""
    if entry.state == "failed":
        return ModelStatus(state="failed", instances=0, error=entry.error)
    if snapshot is None:
        return ModelStatus(state=None, instances=None)
    name = entry.spec.base or entry.spec.name  # instances of the base serve an adapter
    states = [one.state for one in instances(snapshot) if one.model == name]
    answering = sum(state in ("serving", "live") for state in states)
    made_up = warning([worker for worker in snapshot.workers if worker.model == name])
    if "serving" in states:
        return ModelStatus(state="ready", instances=answering, warning=made_up)
    if "live" in states:
        return ModelStatus(state="live", instances=answering, warning=made_up)
    return ModelStatus(state="loading" if "loading" in states else "cold", instances=0)


def warning(workers: Sequence[WorkerReport]) -> str | UnsetType:
    """The warning that answers are made up, where one of these workers has a modelled engine."""
    return MADE_UP if any(worker.engine == "modelled" for worker in workers) else UNSET


def router_is_there(snapshot: Snapshot) -> bool:
    """Whether a router lives, in the registry's eyes."""
    return any(member.service == "router" and member.lease == "alive" for member in snapshot.members)


def why_unavailable(connected: bool, snapshot: Snapshot | None, ready_models: Sequence[str]) -> str | None:
    """Why no request can be served; None where one can be answered, or held while an instance starts."""
    if not connected:
        return "the bus is disconnected"
    if snapshot is None:
        return "the registry does not answer"
    if not router_is_there(snapshot):
        return "no router is alive"
    return None if ready_models else "no model is ready"
