"""All endpoints of a gateway, and what they are made of."""

from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass

from livescale.services.gateway.adapters import AdapterApi
from livescale.services.gateway.admin import Admin
from livescale.services.gateway.catalog import Catalog
from livescale.services.gateway.generating import make_completions, make_responses
from livescale.services.gateway.generation import Backend
from livescale.services.gateway.models import RegisteredModels
from livescale.services.gateway.openapi import Operation
from livescale.services.gateway.operations import operations
from livescale.services.gateway.pooling import Pooling
from livescale.services.gateway.pooling_api import PoolingApi
from livescale.services.gateway.pooling_prompts import PoolingPrompts
from livescale.services.gateway.probes import Probes
from livescale.services.gateway.responses_api import ResponsesApi
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.tokenization import Tokenization
from livescale.services.gateway.work_processes import WorkProcesses, open_work_processes
from livescale.shared.process.run import World


@dataclass(frozen=True)
class Endpoints:
    """The operations that are served, and the `processes` that work for them; `responses` makes in the background what
    nobody waits for."""

    operations: list[Operation]
    responses: ResponsesApi
    probes: Probes
    processes: WorkProcesses


@asynccontextmanager
async def open_endpoints(
    world: World, settings: GatewaySettings, backend: Backend, models: RegisteredModels, executor: Executor
) -> AsyncIterator[Endpoints]:
    """Make the endpoints; the processes that work for them run until this ends."""
    bus, limit, id = world.bus, settings.max_body_bytes, world.info.id
    async with open_work_processes(world.clock) as processes:
        completions = make_completions(world, settings, backend, models, processes)
        responses = make_responses(world, settings, completions)
        prompts = PoolingPrompts(world.ids, world.clock, models, processes.images)
        pooling = PoolingApi(prompts, Pooling(settings, id, backend), limit)
        catalog, tokenization = Catalog(bus, models), Tokenization(models, processes.templates, limit)
        admin, adapters = Admin(bus, models, limit), AdapterApi(bus, models, limit)
        probes = Probes(id, bus, models, catalog, world.telemetry, executor)
        made = operations(completions, responses, pooling, catalog, tokenization, admin, probes, adapters)
        yield Endpoints(made, responses, probes, processes)
