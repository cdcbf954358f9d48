"""Why a cluster is not at rest, though nothing more is asked of it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Set

from livescale.load.amiss import find_amiss
from livescale.load.simulate.cluster import VirtualCluster
from livescale.load.simulate.seeds.reports import LastReports
from livescale.load.story import QueuePoint
from livescale.services.planner.actor import Planner
from livescale.services.registry.actor import Registry
from livescale.services.router.main import Router
from livescale.services.worker.actor import Worker
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.registry import AskSnapshot, ModelEntry
from livescale.shared.subjects import SNAPSHOT

CALL_SECONDS = 1.0


async def unrest(cluster: VirtualCluster, reports: LastReports) -> list[str]:
    """What keeps the system from being at rest, one line each."""
    try:
        snapshot = await cluster.operator.call(SNAPSHOT, AskSnapshot(), timeout=CALL_SECONDS)
    except BusError as error:
        return [f"the registry does not answer: {error}"]
    told, queues = reports.of_running(), reports.queues()
    waiting, running = sum(one.waiting_requests for one in queues), sum(one.running for one in queues)
    amiss = find_amiss(snapshot, QueuePoint(0.0, waiting, running), cluster.ids)
    serving = Counter(worker.model for worker in snapshot.workers if worker.instance and worker.rank == 0)
    spare = sum(worker.state == "spare" for worker in snapshot.workers)
    for model in snapshot.models:
        if serving[model.spec.name] > model.spec.min_instances:
            amiss.append(f"{serving[model.spec.name]} instances of {model.spec.name} without any request")
        if spare >= model.spec.tensor_parallel_size:  # otherwise nobody can take the place of an older one
            amiss += outdated(snapshot.workers, model)
    for worker in snapshot.workers:
        report = told.get(worker.id)
        if isinstance(report, WorkerReport) and (report.state, report.instance) != (worker.state, worker.instance):
            amiss.append(f"the registry takes {worker.id} for {worker.state}, which is {report.state}")
    alive = {one.id for one in snapshot.members if one.service == "worker" and one.lease == "alive"}
    return [*amiss, *misbeliefs(cluster, alive)]


def outdated(workers: Iterable[WorkerReport], model: ModelEntry) -> Iterator[str]:
    """Yield the workers that hold another version than the model has."""
    for worker in workers:
        if worker.model == model.spec.name and (worker.version or "").partition(".")[0] != model.version:
            yield f"{worker.id} has version {worker.version} of {model.spec.name}, not {model.version}"


def misbeliefs(cluster: VirtualCluster, alive: Set[str]) -> Iterator[str]:
    """Yield what a process waits for or holds against another, although there is nothing left of it."""
    for id, process in cluster.processes.items():
        match process.actor:
            case Registry() as registry:
                models = registry._pool._models
                readers = [(name, content.reader) for name, model in models.items() for content in model.contents]
                yield from (f"{id} waits for {host} to read {name}" for name, host in readers if host is not None)
            case Router(office=office) if office is not None:
                shut_out = sorted(office.policy._fleet._suspects & alive)
                yield from (f"{id} gives nothing to {worker}, which lives" for worker in shut_out)
            case Planner() as planner:
                yield from (f"{id} still carries out {scale.id}" for scale in planner._store.running())
            case Worker() as worker if hasattr(worker, "_deployment"):
                yield from (f"{id} {what}" for what in held_for_nobody(worker))


def held_for_nobody(worker: Worker) -> Iterator[str]:
    """Yield what a worker keeps for requests, of which there is none any more."""
    scheduler = worker._serving.scheduler
    if scheduler is not None:
        yield from (f"still runs {sequence.request_id}" for sequence in scheduler.in_order)
        yield from (f"keeps KV blocks for {reservation.name}" for reservation in scheduler.reservations)
    if worker._deployment.source._receiving:
        yield "waits for what others were to hand over"
