"""Imports nats-py without aiohttp. What is the first to import any part of nats-py imports this before.

nats-py imports aiohttp, where that is installed, for NATS over websockets, which nothing here speaks. It would take
every command and every service a fifth of a second to start.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import cast

if "nats" not in sys.modules and "aiohttp" not in sys.modules:
    sys.modules["aiohttp"] = cast(ModuleType, None)  # as long as this stands there, to import it fails
    try:
        import_module("nats.aio.transport")
    finally:
        del sys.modules["aiohttp"]
