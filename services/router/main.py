"""The router's process."""

from services.router.actor import Router
from services.router.settings import RouterSettings
from shared.process import run_process


def main(settings: RouterSettings) -> None:
    run_process(settings, "router", lambda world: Router(world, settings))
