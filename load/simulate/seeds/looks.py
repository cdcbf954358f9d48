"""Looks into a cluster while it runs: what processes are at, whom they wait for, and whether all is at rest."""

from collections import Counter
from collections.abc import Collection, Iterator, Set

from livescale.load.amiss import find_amiss
from livescale.load.simulate.cluster import VirtualCluster
from livescale.load.simulate.seeds.history import Moment
from livescale.load.simulate.seeds.reports import LastReports
from livescale.load.story import QueuePoint
from livescale.services.host.actor import HostService
from livescale.services.planner.actor import Planner
from livescale.services.registry.actor import Registry
from livescale.services.router.main import Router
from livescale.services.worker.actor import Worker
from livescale.services.worker.deployment import Deployment
from livescale.services.worker.disaggregation.incoming import IncomingKv
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.registry import AskSnapshot
from livescale.shared.subjects import SNAPSHOT

CALL_SECONDS = 1.0


def processes_that_are(when: Moment, cluster: VirtualCluster) -> list[str]:
    """The workers that run and are in this state; of those that send parameters hosts, too, and hosts that read. Where
    requests wait it is the router in office that does."""
    if when == "queueing":
        offices = {id: one.actor.office for id, one in cluster.processes.items() if isinstance(one.actor, Router)}
        return [id for id, office in offices.items() if office is not None and any(office.policy.depths().values())]
    if when == "reading":
        readers = {id: one.actor for id, one in cluster.processes.items() if isinstance(one.actor, HostService)}
        return [id for id, host in readers.items() if any(not held.is_whole for _, held in host._cache.items())]
    deployments = {
        id: process.actor._deployment
        for id, process in sorted(cluster.processes.items())
        if isinstance(process.actor, Worker) and hasattr(process.actor, "_deployment")
    }
    if when == "sending":
        hosts = [id for id, process in cluster.processes.items() if isinstance(process.actor, HostService)]
        sending = [id for id in hosts if getattr(cluster.processes[id].actor, "_outgoing", ())]
        return sending + [id for id, deployment in deployments.items() if deployment.flows_out]
    if when == "moving KV":
        pairs = [(one.asked.prefill.id, id) for id, each in deployments.items() for one in coming_kv(each)]
        return sorted({id for pair in pairs for id in pair} & deployments.keys())
    if when != "handing over":
        return [id for id, deployment in deployments.items() if deployment.lifecycle.state == when]
    coming = [hand_off for one in deployments.values() for hand_off in one.source._receiving.values()]
    return [id for id in deployments if any(hand_off.needs(id) for hand_off in coming)]


def coming_kv(deployment: Deployment) -> Collection[IncomingKv]:
    """The requests on their way to this worker, which is to decode them."""
    return deployment.disaggregation.decode._incoming.values()


def waits_for_dead(cluster: VirtualCluster) -> Iterator[tuple[str, str]]:
    """Yield each worker that waits for another one which is dead, and that one, in the registry's eyes."""
    registries = [one.actor for one in cluster.processes.values() if isinstance(one.actor, Registry)]
    members = [member for registry in registries for member in registry._leases.members()]
    dead = {member.id for member in members if member.lease == "dead"}
    for id, process in cluster.processes.items():
        if dead and isinstance(process.actor, Worker) and hasattr(process.actor, "_deployment"):
            deployment = process.actor._deployment
            hand_offs = deployment.source._receiving.values()
            yield from ((id, one) for one in dead if any(hand_off.needs(one) for hand_off in hand_offs))
            yield from ((id, one.asked.prefill.id) for one in coming_kv(deployment) if one.asked.prefill.id in dead)


def waits_for_told(cluster: VirtualCluster) -> Iterator[tuple[str, str]]:
    """Yield each registry that waits for a host to read what it knows this host to have, and what that is."""
    for id, process in cluster.processes.items():
        if isinstance(process.actor, Registry):
            pool = process.actor._pool
            for name, model in pool._models.items():
                readers = {content.reader for content in model.contents if content.version == model.version}
                yield from ((id, f"{host} to read {name}") for host in readers & set(pool.holders(model.version)))


def loads_of_others(cluster: VirtualCluster, told: Set[tuple[str, int, str]]) -> Iterator[str]:
    """Yield each worker that loads for a plan, although nobody `told` it to in the life that it leads."""
    for id, process in cluster.processes.items():
        if isinstance(process.actor, Worker) and hasattr(process.actor, "_deployment"):
            held, epoch = process.actor._deployment.lifecycle.assignment, process.actor._membership.epoch
            if held is not None and (id, epoch, held.plan_id) not in told:
                yield f"{id} loads for {held.plan_id}, which was not meant for its life of epoch {epoch}"


def counted_twice(cluster: VirtualCluster) -> bool:
    """Whether a router counts a request at two workers."""
    policies = (
        one.actor.office.policy
        for one in cluster.processes.values()
        if isinstance(one.actor, Router) and one.actor.office
    )
    counts = (Counter(id for one in policy._fleet._instances.values() for id in one.admitted) for policy in policies)
    return any(most > 1 for count in counts for _, most in count.most_common(1))


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
    for model in snapshot.models:
        if serving[model.spec.name] > model.spec.min_instances:
            amiss.append(f"{serving[model.spec.name]} instances of {model.spec.name} without any request")
    for worker in snapshot.workers:
        report = told.get(worker.id)
        if isinstance(report, WorkerReport) and (report.state, report.instance) != (worker.state, worker.instance):
            amiss.append(f"the registry takes {worker.id} for {worker.state}, which is {report.state}")
    alive = {one.id for one in snapshot.members if one.service == "worker" and one.lease == "alive"}
    return [*amiss, *misbeliefs(cluster, alive)]


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
