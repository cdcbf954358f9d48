"""No process of the system imports what only websockets need."""

import subprocess
import sys

TRY = """
import sys
import livescale.shared.bus.nats
print("aiohttp" in sys.modules)
import aiohttp
import nats.aio.transport
print(aiohttp.__name__, nats.aio.transport.aiohttp)
"""


def test_the_bus_is_imported_without_aiohttp_which_others_can_still_import() -> None:
    done = subprocess.run([sys.executable, "-c", TRY], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "aiohttp", "None"]
