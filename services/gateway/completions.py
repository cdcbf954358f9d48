"""The completions API: a body is checked, its prompts tokenized, its generations run, and the response made of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as with_fields
from functools import partial

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.access import Visit
from livescale.services.gateway.beams import BeamResponse, searches_of
from livescale.services.gateway.bodies import ChatRequest, CompletionRequest, GenerationOptions, asked_logprobs, choices
from livescale.services.gateway.completion_response import CompletionResponse
from livescale.services.gateway.envelope import echoes_of, envelope_of
from livescale.services.gateway.errors import NO_OTHERS, renamed
from livescale.services.gateway.generation import Generation
from livescale.services.gateway.openapi import GENERATION_ERRORS, Operation
from livescale.services.gateway.parse import parse_body, read_body
from livescale.services.gateway.prompt_maker import PromptMaker
from livescale.services.gateway.responses import EventStreamResponse, json_answer, while_connected
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.shapes import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatShape,
    Completion,
    CompletionShape,
    ResponseShape,
)
from livescale.services.gateway.spans import Tracing
from livescale.services.gateway.streams import Backend
from livescale.services.gateway.submission import (
    Origin,
    Prompts,
    TokenRules,
    decoding,
    fitted,
    make_output,
    submits_of,
)
from livescale.shared.bus.contract import Context
from livescale.shared.process.run import World


class CompletionMaker:
    """Prepares responses that generate. Workers send their tokens to the gateway that `world` is of."""

    def __init__(self, world: World, settings: GatewaySettings, backend: Backend, prompts: PromptMaker) -> None:
        self._world = world
        self._settings = settings
        self._backend = backend
        self._prompts = prompts
        self._tracing = Tracing(world.telemetry, world.clock)

    async def prepare(self, request: Request, asked: Prompts, shape: ResponseShape) -> CompletionResponse:
        """The response to these prompts, in this shape. Nothing runs yet. Raises ApiError."""
        asked = fitted(asked, self._settings.max_prompts)
        rules = await self._prompts.rules(asked, request.state.visit.who)
        return self._response(request, asked, rules, shape)

    def _response(
        self, request: Request, asked: Prompts, rules: TokenRules, shape: ResponseShape
    ) -> CompletionResponse:
        request_id, wall, body, each = (
            self._world.ids.new("req"),
            self._world.clock.wall(),
            asked.body,
            choices(asked.body),
        )
        deadline = wall + min(body.timeout or self._settings.default_timeout_s, self._settings.max_timeout_s)
        visit: Visit = request.state.visit
        submits = submits_of(asked, Origin(request_id, self._world.info.id, deadline, client=visit.who), rules)
        public = take_id(request, body) or request_id.removeprefix("req-")
        envelope = envelope_of(body, asked.text.token_text, asked.said, f"{shape.prefix}-{public}", int(wall))
        visit.reserve(sum(map(len, asked.prompts)) + sum(submit.max_tokens for submit in submits))
        trace = self._tracing.begin(request.headers, body, envelope.id)
        if trace.traceparent is not None:
            submits = [replace(submit, traceparent=trace.traceparent) for submit in submits]
        context = Context(deadline=deadline, request_id=public_id(request), traceparent=trace.traceparent)
        outputs = [make_output(body, asked.text, submit, asked.reading, index) for index, submit in enumerate(submits)]
        generations = [
            Generation(
                self._backend, submit, output, context, follows=index % each > 0, grammar_param=rules.grammar_param
            )
            for index, (submit, output) in enumerate(zip(submits, outputs, strict=True))
        ]
        make: type[CompletionResponse] | partial[BeamResponse] = CompletionResponse
        if body.use_beam_search:
            searches = searches_of(body, submits, self._backend, context)
            make = partial(BeamResponse, searches=searches, top=asked_logprobs(body))
        return make(
            shape=shape,
            envelope=envelope,
            prompts=asked.prompts,
            n=body.n,
            generations=generations,
            echoes=echoes_of(body, asked.prompts, decoding(body, asked.text)),
            trace=trace,
            spend=visit.spend,
            interval=body.stream_interval,
            deadline=deadline,
        )


def take_id(request: Request, body: GenerationOptions) -> str | None:
    """The id that the body gives the request, by which it is then known; None where there is none, or the header has
    one."""
    if body.request_id is None or "x-request-id" in request.headers:
        return None
    request.state.request_id = body.request_id
    return body.request_id


def public_id(request: Request) -> str:
    """The id that clients know the request by: the one they gave it, otherwise the gateway's."""
    return str(request.state.request_id)


@dataclass(frozen=True)
class Completions:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError."""

    prompts: PromptMaker
    maker: CompletionMaker
    max_body_bytes: int

    async def completion(self, request: Request) -> Response:
        """Answer POST /v1/completions: `n` choices for each prompt."""
        body = parse_body(await read_body(request, self.max_body_bytes), CompletionRequest)
        response = await self.maker.prepare(request, await self.prompts.of_texts(body), CompletionShape())
        return await _answer(request, body, response)

    async def chat(self, request: Request) -> Response:
        """Answer POST /v1/chat/completions: the prompt is what the checkpoint's template makes of the messages."""
        body = parse_body(await read_body(request, self.max_body_bytes), ChatRequest)
        return await _answer(request, body, await self.converse(request, body, ChatShape()))

    async def converse(
        self, request: Request, body: ChatRequest, shape: ResponseShape, names: Mapping[str, str] = NO_OTHERS
    ) -> CompletionResponse:
        """Prepare the response to a conversation, in this shape. Its errors, now and later, call parameters by their
        `names`. Nothing runs yet."""
        origin = public_id(request) if body.seed is None else str(body.seed)
        with renamed(names):
            response = await self.maker.prepare(request, await self.prompts.of_chat(body, origin), shape)
        return with_fields(response, names=names)

    async def count(self, body: ChatRequest, names: Mapping[str, str]) -> int:
        """How many tokens the prompt of a conversation has. Errors call parameters by their `names`."""
        with renamed(names):
            asked = await self.prompts.of_chat(body)
        return len(asked.prompts[0])


async def _answer(request: Request, body: GenerationOptions, response: CompletionResponse) -> Response:
    if body.stream:
        return EventStreamResponse(response.stream)
    return json_answer(await while_connected(request.receive, response.collect()))


def generation_operations(completions: Completions) -> list[Operation]:
    """Return the operations of completions and chats, for the application and OpenAPI."""
    return [
        Operation(
            "POST",
            "/v1/chat/completions",
            completions.chat,
            "Continue a conversation, by the checkpoint's chat template",
            {200: ChatCompletion},
            body=ChatRequest,
            stream=ChatCompletionChunk,
            errors=GENERATION_ERRORS,
            protected=True,
        ),
        Operation(
            "POST",
            "/v1/completions",
            completions.completion,
            "Continue one or more texts",
            {200: Completion},
            body=CompletionRequest,
            stream=Completion,
            errors=GENERATION_ERRORS,
            protected=True,
        ),
    ]
