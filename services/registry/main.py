"""The registry's process."""

from services.registry.actor import Registry
from services.registry.settings import RegistrySettings
from shared.process import run_process


def main(settings: RegistrySettings) -> None:
    run_process(settings, "registry", lambda world: Registry(world, settings))
