"""The process of the registry: it finds the topology, and starts the actor."""

from livescale.services.registry.actor import Registry
from livescale.services.registry.join_checks import JoinRules
from livescale.services.registry.settings import RegistrySettings
from livescale.shared.process.run import run_process
from livescale.shared.topology.file import find_topology


def main(settings: RegistrySettings) -> None:
    topology = find_topology(settings.topology) if settings.topology else None
    run_process(settings, "registry", lambda world: Registry(world, settings, JoinRules(topology)))
