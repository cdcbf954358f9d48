"""The gateway: the REST door of the system."""

import asyncio
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import structlog

from livescale.services.gateway.access import Guard
from livescale.services.gateway.admin import Admin
from livescale.services.gateway.app import make_app
from livescale.services.gateway.catalog import Catalog
from livescale.services.gateway.completing import Completing
from livescale.services.gateway.generation import Engine
from livescale.services.gateway.holding import Holding
from livescale.services.gateway.keys import Keyring
from livescale.services.gateway.metrics import GatewayMetrics
from livescale.services.gateway.models import Models
from livescale.services.gateway.operations import Operation, operations
from livescale.services.gateway.peers import Peers
from livescale.services.gateway.probes import Probes
from livescale.services.gateway.server import Server, is_loopback, listen, url_of
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.streams import Streams
from livescale.services.gateway.templates import Templates
from livescale.shared.process.membership import Membership
from livescale.shared.process.run import World

log = structlog.get_logger()


class Gateway:
    """Serves HTTP until cancelled. `url` is known once it listens."""

    def __init__(self, world: World, settings: GatewaySettings, keys: Keyring) -> None:
        self._world = world
        self._keys = keys
        self._settings = settings
        self._id = world.info.id
        self._metrics = GatewayMetrics(world.telemetry)
        self._streams = Streams(world.bus, self._id, self._metrics, settings.max_requests, settings.stream_queue)
        self._templates = Templates(world.clock.wall)
        self.url = ""

    async def run(self) -> None:
        """Raises PortInUse."""
        world, settings = self._world, self._settings
        bound = listen(settings.host, settings.port)
        with bound, ThreadPoolExecutor(1, "tokenizer") as executor:
            models = Models(world.bus, world.clock, executor, self._metrics)
            guard = Guard(self._keys, world.clock, is_loopback(bound))
            app = make_app(self._operations(models, executor), guard, world.ids, self._metrics)
            arriving = await self._streams.listen()
            async with self._templates, asyncio.TaskGroup() as group:
                group.create_task(self._streams.run(arriving), name="tokens")
                group.create_task(Peers(world.bus, self._streams).run(), name="peers")
                group.create_task(models.run(), name="models")
                group.create_task(Membership(world.bus, world.clock, "gateway", self._id, world.host).run())
                self._say_ready(url_of(bound))
                # Not a task of the group: it ends in good order while tokens still arrive.
                await Server(app, bound, settings.shutdown_grace_s, settings.unread_timeout_s).run()

    def _operations(self, models: Models, executor: ThreadPoolExecutor) -> list[Operation]:
        world, limit = self._world, self._settings.max_body_bytes
        holding = Holding(self._metrics.router_waits, self._settings.max_held)
        engine = Engine(world.bus, world.clock, self._streams, self._metrics, holding)
        catalog = Catalog(world.bus, models, self._templates, limit)
        return operations(
            Completing(self._settings, self._id, world.ids, engine, models, self._templates, world.telemetry.tracer),
            catalog,
            Admin(world.bus, models, limit),
            Probes(self._id, world.bus, models, catalog, world.telemetry, executor),
        )

    def _say_ready(self, url: str) -> None:
        self.url = url
        if self._settings.ready_file:
            write_atomically(Path(self._settings.ready_file), msgspec.json.encode({"url": url}))
        log.info("gateway_listening", url=url)


def write_atomically(path: Path, data: bytes) -> None:
    """Whoever reads `path` finds all of `data`, or what was there before."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
