"""Wiring of the gateway."""

from services.gateway.gateway import Gateway
from services.gateway.settings import GatewaySettings
from shared.process import run_process


def main(settings: GatewaySettings) -> None:
    run_process(settings, "gateway", lambda world: Gateway(world, settings))
