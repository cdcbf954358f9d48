"""The planner's process: it finds the topology, and starts the actor."""

from msgspec.structs import replace

from livescale.services.planner.actor import Planner
from livescale.services.planner.settings import PlannerSettings
from livescale.shared.process.run import run_process
from livescale.shared.topology.file import find_topology


def main(settings: PlannerSettings) -> None:
    topology = find_topology(settings.topology) if settings.topology else None
    if topology is not None and not settings.link_rate:
        settings = replace(settings, link_rate=topology.slowest_nic)
    run_process(settings, "planner", lambda world: Planner(world, settings, topology))
