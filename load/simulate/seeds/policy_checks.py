"""Whether the policies of a simulated cluster contradict themselves."""

from collections.abc import Callable, Iterator

from livescale.load.simulate.client import HeadlessGateway
from livescale.load.simulate.cluster import VirtualCluster
from livescale.services.monitor.actor import Monitor
from livescale.services.planner.actor import Planner
from livescale.services.registry.actor import Registry
from livescale.services.router.main import Router
from livescale.services.worker.actor import Worker
from livescale.shared.policy.invariants import InvariantBroken
from livescale.shared.process.run import Actor

Check = Callable[[], None]


def policy_troubles(cluster: VirtualCluster) -> Iterator[str]:
    """Yield what the policies of all processes find wrong with their own state."""
    for id, process in cluster.processes.items():
        for check in checks_of(process.actor):
            try:
                check()
            except InvariantBroken as error:
                yield f"{id}: {error}"


def checks_of(actor: Actor) -> Iterator[Check]:
    """Yield what a process has to say whether its state holds; nothing before it runs."""
    match actor:
        case Registry():
            alive = {member.id for member in actor._leases.members() if member.lease != "dead"}
            yield actor._leases.check_invariants
            yield lambda: actor._pool.check_invariants(alive)
        case Router(office=office) if office is not None:
            yield office.policy.check_invariants
        case Planner():
            yield actor._store.check_invariants
        case Monitor():
            yield actor._policy.check_invariants
        case HeadlessGateway():
            yield actor.streams.check_invariants
        case Worker() if hasattr(actor, "_deployment"):
            yield actor._deployment.lifecycle.check_invariants
            if actor._serving.scheduler is not None:
                yield actor._serving.scheduler.check_invariants
            target = actor._deployment.live.target
            if target is not None:
                yield target.queue.check_invariants
