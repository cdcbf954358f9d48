"""What generates texts: the endpoints of completions, chats and responses, and what they share."""

from livescale.services.gateway.completions import CompletionMaker, Completions
from livescale.services.gateway.kept_responses import KeptResponses, open_response_store
from livescale.services.gateway.models import RegisteredModels
from livescale.services.gateway.prompt_maker import PromptMaker
from livescale.services.gateway.responses_api import ResponsesApi
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.spans import Tracing
from livescale.services.gateway.streams import Backend
from livescale.services.gateway.work_processes import WorkProcesses
from livescale.shared.process.run import World


def make_completions(
    world: World,
    settings: GatewaySettings,
    backend: Backend,
    models: RegisteredModels,
    processes: WorkProcesses,
) -> Completions:
    """The endpoints of completions and chats."""
    prompts = PromptMaker(
        models,
        processes.templates,
        processes.grammars,
        settings.max_prompts,
        settings.trust_request_chat_template,
    )
    tracing = Tracing(world.telemetry, world.clock)
    maker = CompletionMaker(settings, world.info.id, world.ids, backend, prompts, tracing)
    return Completions(prompts, maker, settings.max_body_bytes)


def make_responses(world: World, settings: GatewaySettings, completions: Completions) -> ResponsesApi:
    """The endpoints of responses, which are made as chats are."""
    return ResponsesApi(completions, KeptResponses(open_response_store(world, settings), world.clock))
