"""Looks into a cluster while it runs: whom processes wait for, and what they do or count although they should not."""

from collections import Counter
from collections.abc import Collection, Iterator, Set

from livescale.load.simulate.cluster import VirtualCluster
from livescale.services.registry.actor import Registry
from livescale.services.router.instances import InstanceView
from livescale.services.router.main import Router
from livescale.services.router.office import Office
from livescale.services.worker.actor import Worker
from livescale.services.worker.deployment import Deployment
from livescale.services.worker.disaggregation.incoming import IncomingKv


def coming_kv(deployment: Deployment) -> Collection[IncomingKv]:
    """The requests on their way to this worker, which is to decode them."""
    return deployment.disaggregation.decode._incoming.values()


def workers(cluster: VirtualCluster) -> Iterator[tuple[str, Worker]]:
    """Yield each worker that has come so far that it can do or wait for anything, by its id."""
    for id, process in cluster.processes.items():
        if isinstance(process.actor, Worker) and hasattr(process.actor, "_deployment"):
            yield id, process.actor


def offices(cluster: VirtualCluster) -> Iterator[tuple[str, Office]]:
    """Yield the office of each router that holds it, by the router's id."""
    for id, process in cluster.processes.items():
        if isinstance(process.actor, Router) and process.actor.office:
            yield id, process.actor.office


def declared_dead(cluster: VirtualCluster) -> set[str]:
    """The processes that a registry has declared dead, and not taken in again."""
    registries = [one.actor for one in cluster.processes.values() if isinstance(one.actor, Registry)]
    members = [member for registry in registries for member in registry._leases.members()]
    return {member.id for member in members if member.lease == "dead"}


def waits_for_dead(cluster: VirtualCluster) -> Iterator[tuple[str, str]]:
    """Yield each worker that waits for another one which is dead, and that one, in the registry's eyes."""
    dead = declared_dead(cluster)
    for id, worker in workers(cluster) if dead else ():
        hand_offs = worker._deployment.source._receiving.values()
        yield from ((id, one) for one in dead if any(hand_off.needs(one) for hand_off in hand_offs))
        coming = coming_kv(worker._deployment)
        yield from ((id, one.asked.prefill.id) for one in coming if one.asked.prefill.id in dead)


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
    for id, worker in workers(cluster):
        held, epoch = worker._deployment.lifecycle.assignment, worker._membership.epoch
        if held is not None and (id, epoch, held.plan_id) not in told:
            yield f"{id} loads for {held.plan_id}, which was not meant for its life of epoch {epoch}"


def fleets(cluster: VirtualCluster) -> Iterator[tuple[str, Collection[InstanceView]]]:
    """Yield each router in office, and the instances that it knows."""
    return ((id, office.policy._fleet._instances.values()) for id, office in offices(cluster))


def counted_twice(cluster: VirtualCluster) -> bool:
    """Whether a router counts a request at two workers."""
    counts = (Counter(id for one in fleet for id in one.admitted) for _, fleet in fleets(cluster))
    return any(most > 1 for count in counts for _, most in count.most_common(1))


def counted_for_nobody(cluster: VirtualCluster) -> Iterator[tuple[str, str]]:
    """Yield each router that counts a request which a worker took, and no worker has any more, and that request. While
    the bus is down no router can hear so."""
    if not cluster.broker.connected:
        return
    schedulers = [one._serving.scheduler for _, one in workers(cluster) if one._serving.scheduler is not None]
    for router, fleet in fleets(cluster):
        taken = (id for one in fleet for id, admission in one.admitted.items() if admission.confirmed)
        yield from ((router, id) for id in taken if not any(id in one for one in schedulers))
