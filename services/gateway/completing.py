"""The two generating endpoints: a body is checked, its prompts tokenized, its generations run and answered."""

from dataclasses import dataclass

from opentelemetry.trace import Tracer
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.access import Visit
from livescale.services.gateway.bodies import ChatMessage, ChatRequest, CompletionRequest, GenerationOptions
from livescale.services.gateway.chat_template import TemplateRefusal
from livescale.services.gateway.checkpoint_text import CheckpointText
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.event_stream import EventStream, while_connected
from livescale.services.gateway.generation import Engine, Generation
from livescale.services.gateway.models import Models, context_tokens
from livescale.services.gateway.order import Order
from livescale.services.gateway.output import Output
from livescale.services.gateway.parse import parse_body
from livescale.services.gateway.reading import json_answer, public_id, read_body, trace_of
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.shapes import ChatShape, CompletionShape, Frame, Shape
from livescale.services.gateway.submission import Origin, check_options, make_submit, split_prompts, stop_strings
from livescale.services.gateway.templates import Templates
from livescale.services.gateway.tracing import start_span
from livescale.shared.bus.contract import Context
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.requests import Submit
from livescale.shared.process.telemetry import traceparent
from livescale.shared.runtime.clock import Ids


@dataclass(frozen=True)
class Completing:
    """Endpoints of starlette: a request in, an answer out. They raise ApiError."""

    settings: GatewaySettings
    gateway: str
    ids: Ids
    engine: Engine
    models: Models
    templates: Templates
    tracer: Tracer

    async def completion(self, request: Request) -> Response:
        body = parse_body(await read_body(request, self.settings.max_body_bytes), CompletionRequest)
        check_options(body)
        entry, text = await self._model(body)
        prompts = [
            one if isinstance(one, list) else await self.models.encode(text, one, add_special_tokens=True)
            for one in split_prompts(body, self.settings.max_prompts)
        ]
        return await self._answer(request, body, self._order(request, body, entry, text, prompts, CompletionShape()))

    async def chat(self, request: Request) -> Response:
        body = parse_body(await read_body(request, self.settings.max_body_bytes), ChatRequest)
        check_options(body)
        entry, text = await self._model(body)
        # The template writes the special tokens itself.
        said = await render_chat(self.templates, text, body.messages)
        prompt = await self.models.encode(text, said, add_special_tokens=False)
        return await self._answer(request, body, self._order(request, body, entry, text, [prompt], ChatShape()))

    async def _model(self, body: GenerationOptions) -> tuple[ModelEntry, CheckpointText]:
        entry = await self.models.find(body.model)
        return entry, await self.models.text(entry)

    async def _answer(self, request: Request, body: GenerationOptions, order: Order) -> Response:
        if body.stream:
            return EventStream(order.stream)
        return json_answer(await while_connected(request.receive, order.collect()))

    def _order(
        self,
        request: Request,
        body: GenerationOptions,
        entry: ModelEntry,
        text: CheckpointText,
        prompts: list[list[int]],
        shape: Shape,
    ) -> Order:
        request_id, wall = self.ids.new("req"), self.engine.clock.wall()
        timeout = min(body.timeout or self.settings.default_timeout_s, self.settings.max_timeout_s)
        origins = [
            Origin(request_id if len(prompts) == 1 else f"{request_id}-p{index}", self.gateway, wall + timeout)
            for index in range(len(prompts))
        ]
        submits = [
            make_submit(body, prompt, text, context_tokens(entry), origin)
            for prompt, origin in zip(prompts, origins, strict=True)
        ]
        frame = Frame(
            id=f"{shape.prefix}-{request_id.removeprefix('req-')}",
            created=int(wall),
            model=body.model,
            token_ids=body.return_token_ids,
            usage_follows=body.stream_options is not None and body.stream_options.include_usage,
        )
        visit: Visit = request.state.visit
        visit.reserve(sum(len(submit.prompt) + submit.max_tokens for submit in submits))
        span = start_span(self.tracer, body, frame.id, trace_of(request))
        context = Context(
            deadline=wall + timeout,
            request_id=public_id(request),
            traceparent=traceparent(span) or trace_of(request),
        )
        generations = [Generation(self.engine, submit, _output(body, text, submit), context) for submit in submits]
        return Order(shape, frame, prompts, generations, span, visit.spend)


def _output(body: GenerationOptions, text: CheckpointText, submit: Submit) -> Output:
    return Output(
        text.decode,
        submit.prompt,
        stops=stop_strings(body),
        stop_token_ids=submit.stop_token_ids,
        min_tokens=submit.min_tokens,
    )


async def render_chat(
    templates: Templates, text: CheckpointText, messages: list[ChatMessage], add_generation_prompt: bool = True
) -> str:
    """The conversation as the checkpoint's template has it. Raises ApiError 400 where it refuses."""
    if text.template is None:
        raise bad_request("This model has no chat template; use /v1/completions.", param="model")
    try:
        return await templates.render(text.template, messages, add_generation_prompt)
    except TemplateRefusal as error:
        raise bad_request(f"The model's chat template refuses the messages: {error}", param="messages") from None
