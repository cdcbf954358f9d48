"""The router's process."""

from livescale.services.router.actor import Router
from livescale.services.router.settings import RouterSettings
from livescale.shared.process.run import run_process


def main(settings: RouterSettings) -> None:
    run_process(settings, "router", lambda world: Router(world, settings))
