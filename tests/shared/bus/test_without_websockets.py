"""No process of the system imports what only websockets need."""

import subprocess
import sys

import pytest

TRY = """
import sys
import {module}
print("aiohttp" in sys.modules)
import aiohttp
import nats.aio.transport
print(aiohttp.__name__, nats.aio.transport.aiohttp)
"""


@pytest.mark.parametrize("module", ["livescale.shared.bus.nats", "livescale.services.supervisor.stack"])
def test_the_bus_is_imported_without_aiohttp_which_others_can_still_import(module: str) -> None:
    code = TRY.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == ["False", "aiohttp", "None"]
