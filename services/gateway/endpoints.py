"""All endpoints of a gateway, and what they are made of."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass

from livescale.services.gateway.adapters import AdapterApi
from livescale.services.gateway.admin import Admin
from livescale.services.gateway.bounded_work import BoundedWork
from livescale.services.gateway.catalog import Catalog
from livescale.services.gateway.generating import make_completions, make_responses
from livescale.services.gateway.generation import Backend
from livescale.services.gateway.grammars import Grammars
from livescale.services.gateway.image_decoder import ImageDecoder
from livescale.services.gateway.models import RegisteredModels
from livescale.services.gateway.operation import Operation
from livescale.services.gateway.operations import operations
from livescale.services.gateway.pooling import Pooling
from livescale.services.gateway.pooling_api import PoolingApi
from livescale.services.gateway.probes import Probes
from livescale.services.gateway.responses_api import ResponsesApi
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.templates import Templates
from livescale.shared.process.run import World

STARTED_SECONDS = 1.0  # after which whoever started with this process leaves the processor to others


@dataclass(frozen=True)
class Endpoints:
    """The operations that are served; `responses` makes in the background what nobody waits for. `beside` are those of
    the processes that work for them which may be started before any client needs them, the likeliest first."""

    operations: list[Operation]
    responses: ResponsesApi
    probes: Probes
    beside: tuple[BoundedWork, ...]

    async def prepare(self) -> None:
        """Have the processes that render templates and try grammars ready before a client needs them."""
        await asyncio.sleep(STARTED_SECONDS)
        for work in self.beside:
            await work.start()


@asynccontextmanager
async def open_endpoints(
    world: World, settings: GatewaySettings, backend: Backend, models: RegisteredModels, executor: Executor
) -> AsyncIterator[Endpoints]:
    """Make the endpoints; the processes that work for them run until this ends."""
    bus, limit, id = world.bus, settings.max_body_bytes, world.info.id
    async with Templates(world.clock.wall) as templates, Grammars() as grammars, ImageDecoder() as decoder:
        completions = make_completions(world, settings, backend, models, templates, grammars)
        responses = make_responses(world, settings, completions)
        pooling = PoolingApi(Pooling(settings, id, world.ids, backend, models, decoder))
        catalog = Catalog(bus, models, templates, limit)
        admin, adapters = Admin(bus, models, limit), AdapterApi(bus, models, limit)
        probes = Probes(id, bus, models, catalog, world.telemetry, executor)
        made = operations(completions, responses, pooling, catalog, admin, probes, adapters)
        yield Endpoints(made, responses, probes, (templates, grammars))
