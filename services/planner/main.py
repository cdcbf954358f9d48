"""The planner's process: it finds the topology, and starts the actor."""

from livescale.services.planner.actor import Planner
from livescale.services.planner.settings import PlannerSettings
from livescale.shared.process.run import run_process
from livescale.shared.topology.file import find_topology


def main(settings: PlannerSettings) -> None:
    topology = find_topology(settings.topology) if settings.topology else None
    told = settings.in_topology(topology)
    run_process(told, "planner", lambda world: Planner(world, told, topology))
