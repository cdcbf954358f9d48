"""The registry's snapshot as flat rows, for people and for `--json`."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from livescale.services.cli.incidents_view import IncidentRow, incident_rows
from livescale.shared.messages.membership import Member, QueueLoad, WorkerReport
from livescale.shared.messages.registry import Incident, Snapshot
from livescale.shared.messages.scaling import Decision
from livescale.shared.model.latency import MADE_UP

# An instance of several workers is as far as its slowest rank.
PROGRESS = ("spare", "loading", "live", "draining", "serving")


class LiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that takes requests while it loads, or has done so.

    `runs` names the layers whose parameters are here, `ready` of `layers`; a helper runs the other layers of a request.
    `handed_over` counts requests by helper. In an execution pipeline `runs` names the blocks of this worker.
    """

    worker: str
    state: str
    ready: int
    layers: int
    runs: str
    waiting: int
    helped_by: list[str]
    helpers_run: str
    handed_over: dict[str, int]


def live_rows(workers: Sequence[WorkerReport]) -> list[LiveRow]:
    """A row for each worker that is live, in a pipeline, is being helped, or has handed requests over."""
    helpers = {report.id: [each.id for each in workers if report.id in each.helping] for report in workers}
    return [
        live_row(report, sorted(helpers[report.id]))
        for report in sorted(workers, key=lambda report: report.id)
        if report.state == "live" or report.pipeline or report.handed_over or helpers[report.id]
    ]


def live_row(report: WorkerReport, helpers: list[str]) -> LiveRow:
    layers = count_layers(report)
    ready = min(report.live_layers, layers) if report.state in ("loading", "live") else layers
    alone = f"1-{ready}" if ready else "none yet"
    return LiveRow(
        worker=report.id,
        state=report.state,
        ready=ready,
        layers=layers,
        runs=f"blocks {report.stage} of {report.pipeline}" if report.pipeline else alone,
        waiting=report.live_waiting,
        helped_by=helpers,
        helpers_run=f"the rest, to {layers}" if helpers else "",
        handed_over=report.handed_over,
    )


def count_layers(report: WorkerReport) -> int:
    """The number of a model's blocks without the embedding and the head."""
    return max(0, report.holding.total - 2) if report.holding is not None else 0


class ProcessRow(msgspec.Struct, frozen=True, kw_only=True):
    """A process. `memory_bytes` includes pages that it shares with others, and is None where it did not answer.

    `system` is HOST:PORT of its system port, with /live, /ready and /metrics.
    """

    service: str
    id: str
    pid: int
    host: str
    lease: str
    memory_bytes: int | None
    system: str | None


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker. `ready` of `total` blocks of `model` are whole and verified; `paths` says how they came, by sender.

    While it is live it can run requests through `live_layers`, and has `live_queue` of them. `helping` lists the
    workers from which it takes requests over. Workers with equal `kernels` compute the same bits. `pipeline` and
    `stage` are the execution pipeline that it is part of, and the blocks that it runs there.
    """

    id: str
    pid: int | None
    host: str | None
    place: str | None
    device: str
    engine: str
    kernels: str | None
    model: str | None
    instance: str | None
    rank: int
    role: str | None
    state: str
    ready: int
    total: int
    live_layers: int
    live_queue: int
    helping: list[str]
    pipeline: str | None
    stage: str
    paths: dict[str, str]


class InstanceRow(msgspec.Struct, frozen=True, kw_only=True):
    """An instance. It sends the KV of so many requests (`sends_kv_of`) to those that decode them, and keeps so many KV
    blocks (`keeps_blocks`) for requests that others prefill."""

    id: str
    model: str
    role: str | None
    state: str
    workers: list[str]
    sends_kv_of: int
    keeps_blocks: int


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model. `copies` lists the processes that hold all of it; `replaced_by` is the path of a new version that is
    being read."""

    name: str
    state: str
    version: str | None
    copies: list[str]
    replaced_by: str | None
    dtype: str
    size_bytes: int
    tensor_parallel_size: int
    min_instances: int
    max_instances: int
    error: str | None


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model's queue. `scaling` is what the monitor says of a model with requests held, or advises; or
    None."""

    model: str
    waiting_requests: int
    waiting_tokens: int
    oldest_seconds: float
    running: int
    scaling: str | None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. `queues` is None, which is unknown and not empty, when no router reported in time."""

    processes: list[ProcessRow]
    workers: list[WorkerRow]
    instances: list[InstanceRow]
    live: list[LiveRow]
    models: list[ModelRow]
    queues: list[QueueRow] | None
    events: list[IncidentRow]

    @property
    def warning(self) -> str | None:
        return MADE_UP if any(worker.engine == "modelled" for worker in self.workers) else None


def make_status(
    snapshot: Snapshot,
    queues: Sequence[QueueLoad] | None,
    decisions: Sequence[Decision] = (),
    incidents: Sequence[Incident] = (),
    memory: Mapping[str, int] = MappingProxyType({}),
) -> Status:
    """The rows of all tables. `decisions` has the last one of each model with requests held."""
    members = {member.id: member for member in snapshot.members}
    return Status(
        processes=[
            ProcessRow(
                service=each.service,
                id=each.id,
                pid=each.pid,
                host=each.host,
                lease=each.lease,
                memory_bytes=memory.get(each.id),
                system=each.system,
            )
            for each in sorted(snapshot.members, key=lambda each: (each.service, each.id))
        ],
        workers=[worker_row(each, members.get(each.id)) for each in sorted(snapshot.workers, key=lambda w: w.id)],
        instances=instance_rows(snapshot.workers),
        live=live_rows(snapshot.workers),
        models=[
            ModelRow(
                name=each.spec.name,
                state=each.state,
                version=each.version,
                copies=each.copies,
                replaced_by=each.next.path if each.next is not None else None,
                dtype=each.spec.dtype,
                size_bytes=each.size_bytes,
                tensor_parallel_size=each.spec.tensor_parallel_size,
                min_instances=each.spec.min_instances,
                max_instances=each.spec.max_instances,
                error=each.error,
            )
            for each in sorted(snapshot.models, key=lambda each: each.spec.name)
        ],
        queues=queue_rows(queues, {each.model: each for each in decisions}),
        events=incident_rows(incidents),
    )


def worker_row(report: WorkerReport, member: Member | None) -> WorkerRow:
    loads = report.state in ("loading", "live")  # once it serves these are of the past
    return WorkerRow(
        id=report.id,
        pid=member.pid if member else None,
        host=member.host if member else None,
        place=member.place if member else None,
        device=report.device,
        engine=report.engine,
        kernels=member.kernels if member else None,
        model=report.model,
        instance=report.instance,
        rank=report.rank,
        role=report.role,
        state=report.state,
        ready=len(report.holding.ready) if report.holding else 0,
        total=report.holding.total if report.holding else 0,
        live_layers=report.live_layers if loads else 0,
        live_queue=report.live_waiting if loads else 0,
        helping=report.helping,
        pipeline=report.pipeline,
        stage=report.stage,
        paths=report.paths,
    )


def instance_rows(workers: Sequence[WorkerReport]) -> list[InstanceRow]:
    """One row for each instance, with its workers in the order of their ranks."""
    ranks: dict[str, list[WorkerReport]] = {}
    for worker in sorted(workers, key=lambda each: (each.rank, each.id)):
        if worker.instance is not None:
            ranks.setdefault(worker.instance, []).append(worker)
    return [
        InstanceRow(
            id=instance,
            model=reports[0].model or "",
            role=reports[0].role,
            state=min((each.state for each in reports), key=PROGRESS.index),
            workers=[each.id for each in reports],
            sends_kv_of=reports[0].sending_kv,
            keeps_blocks=0 if reports[0].load is None else reports[0].load.reserved_blocks,
        )
        for instance, reports in sorted(ranks.items())
    ]


def queue_rows(queues: Sequence[QueueLoad] | None, decisions: Mapping[str, Decision]) -> list[QueueRow] | None:
    if queues is None:
        return None
    return [
        QueueRow(
            model=each.model,
            waiting_requests=each.waiting_requests,
            waiting_tokens=each.waiting_tokens,
            oldest_seconds=each.oldest_seconds,
            running=each.running,
            scaling=scaling(decisions[each.model]) if each.model in decisions else None,
        )
        for each in sorted(queues, key=lambda each: each.model)
    ]


def scaling(decision: Decision) -> str:
    """The decision in words: to how many instances the model scales or holds, and why."""
    advises = "advises " if decision.advice else ""
    change = (
        f"{advises}{decision.action} to {decision.target}"
        if decision.action != "hold"
        else f"hold at {decision.current}"
    )
    roles = ", ".join(f"{count} {role}" for role, count in sorted(decision.roles.items(), reverse=True))
    return f"{change}{f' ({roles})' if roles else ''}: {decision.reason}"
