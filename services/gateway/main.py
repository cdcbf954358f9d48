"""The gateway's process: it serves HTTP until it is cancelled."""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

from livescale.services.gateway.access import BadKeys, Guard, Keyring, read_keys
from livescale.services.gateway.app import make_app
from livescale.services.gateway.endpoints import Endpoints, open_endpoints
from livescale.services.gateway.metrics import GatewayMetrics
from livescale.services.gateway.models import RegisteredModels
from livescale.services.gateway.server import Server, allow_connections, is_loopback, listen, say_ready, url_of
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.streams import Backend, HeldRequests, Peers, RequestStreams
from livescale.services.gateway.vocabularies import Vocabularies
from livescale.shared.process.run import World, run_process


class Gateway:
    """Serves HTTP until it is cancelled. `url` is empty until it listens."""

    def __init__(self, world: World, settings: GatewaySettings, keys: Keyring) -> None:
        self._world = world
        self._keys = keys
        self._settings = settings
        self._metrics = GatewayMetrics(world.telemetry, world.clock)
        id = world.info.id
        self._streams = RequestStreams(world.bus, id, self._metrics, settings.max_requests, settings.stream_queue)
        self._membership = world.membership("gateway")
        self._endpoints: Endpoints | None = None
        self.url = ""

    async def run(self) -> None:
        """Serve until cancelled. Raises PortInUse where the address cannot be listened on."""
        world, settings, metrics = self._world, self._settings, self._metrics
        bound = listen(settings.host, settings.port)
        held = HeldRequests(metrics.router_waits, settings.max_held)
        backend = Backend(world.bus, world.clock, self._streams, metrics, held)
        with bound, ThreadPoolExecutor(1, "tokenizer") as executor:
            models = RegisteredModels(world.bus, world.clock, executor, metrics)
            guard = Guard(self._keys, world.clock, is_loopback(bound))
            arriving = await self._streams.listen()
            async with (
                open_endpoints(world, settings, backend, models, executor) as endpoints,
                asyncio.TaskGroup() as group,
            ):
                self._endpoints = endpoints
                app = make_app(endpoints.operations, guard, world.ids, metrics, settings.allowed_origins)
                await Vocabularies(models, executor).serve(world.bus, world.info)
                group.create_task(self._streams.run(arriving), name="tokens")
                group.create_task(Peers(world.bus, self._streams).run(), name="peers")
                group.create_task(models.run(), name="models")
                group.create_task(endpoints.responses.run(), name="responses")
                group.create_task(self._membership.run(), name="membership")
                self.url = url_of(bound)
                say_ready(self.url, settings.ready_file)
                group.create_task(endpoints.processes.prepare(), name="beside")
                # The server is not a task of the group: it ends its requests while tokens still arrive.
                await Server(app, bound, settings.shutdown_grace_s, settings.unread_timeout_s).run()

    async def why_not_ready(self) -> str | None:
        """Why it does not serve its role just now; None where it does."""
        if self._endpoints is None or not self.url:
            return "it does not listen yet"
        return await self._endpoints.probes.why_unavailable() or await self._membership.why_not_ready()


def main(settings: GatewaySettings) -> None:
    """Run a gateway as this process; ends it with a message where the keys cannot be used."""
    try:
        keys = read_keys(settings.api_key, settings.api_keys)
    except BadKeys as error:
        sys.exit(f"Error: {error}")
    allow_connections()
    run_process(settings, "gateway", lambda world: Gateway(world, settings, keys))
