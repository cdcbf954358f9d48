"""Wiring of the gateway."""

import sys

from services.gateway.gateway import Gateway
from services.gateway.keys import BadKeys, read_keys
from services.gateway.server import allow_connections
from services.gateway.settings import GatewaySettings
from shared.process import run_process


def main(settings: GatewaySettings) -> None:
    try:
        keys = read_keys(settings.api_key, settings.api_keys)
    except BadKeys as error:
        sys.exit(f"Error: {error}")
    allow_connections()
    run_process(settings, "gateway", lambda world: Gateway(world, settings, keys))
