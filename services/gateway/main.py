"""Wiring of the gateway."""

import sys

from livescale.services.gateway.gateway import Gateway
from livescale.services.gateway.keys import BadKeys, read_keys
from livescale.services.gateway.server import allow_connections
from livescale.services.gateway.settings import GatewaySettings
from livescale.shared.process.run import run_process


def main(settings: GatewaySettings) -> None:
    try:
        keys = read_keys(settings.api_key, settings.api_keys)
    except BadKeys as error:
        sys.exit(f"Error: {error}")
    allow_connections()
    run_process(settings, "gateway", lambda world: Gateway(world, settings, keys))
