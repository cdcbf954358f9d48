"""The planner's process: it finds the topology, and starts the actor."""

from livescale.services.planner.actor import Planner
from livescale.services.planner.scale_planner import ScalePlanner
from livescale.services.planner.settings import PlannerSettings
from livescale.services.planner.store import ScaleStore
from livescale.shared.process.run import World, run_process
from livescale.shared.topology.file import find_topology
from livescale.shared.topology.topology import Topology
from livescale.shared.transfer.chunks import first_ticket


def main(settings: PlannerSettings) -> None:
    topology = find_topology(settings.topology) if settings.topology else None
    told = settings.in_topology(topology)
    run_process(told, "planner", lambda world: make_planner(world, told, topology))


def make_planner(world: World, settings: PlannerSettings, topology: Topology | None = None) -> Planner:
    """The actor of a planner that no scale is known to yet."""
    store = ScaleStore(first_ticket(world.clock.wall()))
    return Planner(world, ScalePlanner(world.ids, settings, store, topology), store)
