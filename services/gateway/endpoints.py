"""All endpoints of a gateway, and what they are made of."""

from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass

from livescale.services.gateway.adapters import AdapterApi, adapter_operations
from livescale.services.gateway.admin import Admin, admin_operations
from livescale.services.gateway.completions import CompletionMaker, Completions, generation_operations
from livescale.services.gateway.messages_api import MessagesApi, message_operations
from livescale.services.gateway.models import RegisteredModels
from livescale.services.gateway.openapi import Operation
from livescale.services.gateway.pooling import Pooling
from livescale.services.gateway.pooling_api import PoolingApi, pooling_operations
from livescale.services.gateway.pooling_prompts import PoolingPrompts
from livescale.services.gateway.probes import Catalog, Probes, model_operations, probe_operations
from livescale.services.gateway.prompt_maker import PromptMaker
from livescale.services.gateway.render_api import RenderApi, render_operations
from livescale.services.gateway.responses_api import ResponsesApi, make_responses, response_operations
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.streams import Backend
from livescale.services.gateway.tokenization import Tokenization, token_operations
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
        prompts = PromptMaker(models, processes.templates, processes.grammars, settings)
        completions = Completions(prompts, CompletionMaker(world, settings, backend, prompts), limit)
        responses = make_responses(world, settings, completions)
        texts = PoolingPrompts(settings, world.ids, world.clock, models, processes.images)
        pooling = PoolingApi(texts, Pooling(id, backend), limit)
        catalog, tokenization = Catalog(bus, models), Tokenization(models, processes.templates, limit)
        admin, adapters = Admin(bus, models, limit), AdapterApi(bus, models, limit)
        probes = Probes(id, bus, models, catalog, world.telemetry, executor)
        made = operations(completions, responses, pooling, catalog, tokenization, admin, probes, adapters)
        yield Endpoints(made, responses, probes, processes)


def operations(
    completions: Completions,
    responses: ResponsesApi,
    pooling: PoolingApi,
    catalog: Catalog,
    tokenization: Tokenization,
    admin: Admin,
    probes: Probes,
    adapters: AdapterApi,
) -> list[Operation]:
    """The operations of all endpoints but those of the documentation itself."""
    return [
        *generation_operations(completions),
        *render_operations(RenderApi(completions)),
        *message_operations(MessagesApi(completions)),
        *response_operations(responses),
        *pooling_operations(pooling),
        *model_operations(catalog),
        *adapter_operations(adapters),
        *token_operations(tokenization),
        *admin_operations(admin),
        *probe_operations(probes),
    ]
