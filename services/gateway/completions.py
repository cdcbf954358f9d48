"""The completions API: a body is checked, its prompts tokenized, its generations run, and the response made of them."""

from dataclasses import dataclass

from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.access import Visit
from livescale.services.gateway.asked import asked_logprobs, choices, only_prompt
from livescale.services.gateway.bodies import ChatRequest, CompletionRequest, GenerationOptions
from livescale.services.gateway.checkpoint_text import CheckpointText
from livescale.services.gateway.checks import check_choices, check_options
from livescale.services.gateway.completion_response import CompletionResponse
from livescale.services.gateway.echo import Echo
from livescale.services.gateway.envelope import Envelope
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.generation import Backend, Generation
from livescale.services.gateway.grammars import Grammars
from livescale.services.gateway.logprobs import PromptNames, TokenNames
from livescale.services.gateway.models import RegisteredModels, context_tokens
from livescale.services.gateway.parse import parse_body, read_body
from livescale.services.gateway.reading import Reading, reading_of
from livescale.services.gateway.rendering import rendering_way
from livescale.services.gateway.responses import EventStreamResponse, json_answer, while_connected
from livescale.services.gateway.sampling_options import banned, spellings
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.shapes import ChatShape, CompletionShape, ResponseShape
from livescale.services.gateway.spans import Tracing
from livescale.services.gateway.submission import (
    Origin,
    TokenRules,
    decoding,
    make_output,
    make_submit,
    split_prompts,
    truncated,
)
from livescale.services.gateway.templates import Templates, render_chat
from livescale.services.gateway.uses import check_generates
from livescale.shared.bus.contract import Context
from livescale.shared.runtime.clock import Ids


@dataclass(frozen=True)
class Completions:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError."""

    settings: GatewaySettings
    gateway: str
    ids: Ids
    backend: Backend
    models: RegisteredModels
    templates: Templates
    grammars: Grammars
    tracing: Tracing

    async def completion(self, request: Request) -> Response:
        """Answer POST /v1/completions: `n` choices for each prompt."""
        body = parse_body(await read_body(request, self.settings.max_body_bytes), CompletionRequest)
        check_options(body)
        entry = await self.models.find_or_only(body.model)
        body = replace(body, model=entry.spec.name)
        text = await self.models.text(entry)
        check_generates(body.model, text.use)
        special = body.add_special_tokens
        prompts = [
            one if isinstance(one, list) else await self.models.encode(text, one, add_special_tokens=special)
            for one in split_prompts(body.prompt, self.settings.max_prompts)
        ]
        response = await self._prepare(request, body, context_tokens(entry), text, prompts, CompletionShape())
        return await _answer(request, body, response)

    async def chat(self, request: Request) -> Response:
        """Answer POST /v1/chat/completions: the prompt is what the checkpoint's template makes of the messages."""
        body = parse_body(await read_body(request, self.settings.max_body_bytes), ChatRequest)
        return await _answer(request, body, await self.converse(request, body, ChatShape()))

    async def converse(self, request: Request, body: ChatRequest, shape: ResponseShape) -> CompletionResponse:
        """Prepare the response to a conversation, in this shape. Nothing runs yet."""
        check_options(body)
        entry = await self.models.find_or_only(body.model)
        body = replace(body, model=entry.spec.name)
        text = await self.models.text(entry)
        check_generates(body.model, text.use)
        if body.chat_template is not None and not self.settings.trust_request_chat_template:
            raise bad_request(
                "'chat_template' is refused: the operator allows it with --trust-request-chat-template; leave it out.",
                "chat_template",
                code="unsupported_parameter",
            )
        origin = public_id(request) if body.seed is None else str(body.seed)
        said = await render_chat(self.templates, text, body.messages, rendering_way(body), body.chat_template)
        prompt = await self.models.encode(text, said, add_special_tokens=body.add_special_tokens)
        reading = reading_of(body, entry.spec, text, origin, said)
        return await self._prepare(request, body, context_tokens(entry), text, [prompt], shape, said, reading)

    async def _prepare(
        self,
        request: Request,
        body: GenerationOptions,
        context_limit: int,
        text: CheckpointText,
        prompts: list[list[int]],
        shape: ResponseShape,
        said: str | UnsetType = UNSET,
        reading: Reading | None = None,
    ) -> CompletionResponse:
        check_choices(body, len(prompts), self.settings.max_prompts)
        prompts = [truncated(body, prompt, context_limit) for prompt in prompts]
        echoes = echoes_of(body, prompts, text)
        grammar = await self.grammars.of(body, text, None if reading is None else reading.constraint)
        if reading is not None and reading.grammar:
            grammar = reading.grammar
        rules = TokenRules(await self._bad_words(body, text), grammar)
        return self._response(request, Asked(body, context_limit, text, prompts, rules, echoes, said, reading), shape)

    async def _bad_words(self, body: GenerationOptions, text: CheckpointText) -> list[list[int]]:
        words = []
        for word in body.bad_words:
            plain, spaced = [
                await self.models.encode(text, spelling, add_special_tokens=False) for spelling in spellings(word)
            ]
            words.extend(banned(plain, spaced))
        return words

    def _response(self, request: Request, asked: "Asked", shape: ResponseShape) -> CompletionResponse:
        """Check the limits, and prepare a generation for each choice of each prompt. Nothing runs yet."""
        request_id, wall, body, text = self.ids.new("req"), self.backend.clock.wall(), asked.body, asked.text
        timeout = min(body.timeout or self.settings.default_timeout_s, self.settings.max_timeout_s)
        each, options = choices(body), body.stream_options
        count = each * len(asked.prompts)
        visit: Visit = request.state.visit
        submits = [
            make_submit(
                body,
                asked.prompts[index // each],
                text,
                asked.context_limit,
                Origin(
                    request_id if count == 1 else f"{request_id}-p{index}",
                    self.gateway,
                    wall + timeout,
                    index % each,
                    visit.who,
                ),
                asked.rules,
            )
            for index in range(count)
        ]
        envelope = Envelope(
            id=f"{shape.prefix}-{take_id(request, body) or request_id.removeprefix('req-')}",
            created=int(wall),
            model=body.model,
            token_ids=body.return_token_ids,
            usage_follows=options is not None and options.include_usage,
            continuous=options is not None and options.include_usage and options.continuous_usage_stats,
            prompt_names=(
                None if body.prompt_logprobs is None else PromptNames(TokenNames(text.token_text), body.prompt_logprobs)
            ),
            names=(
                None if asked_logprobs(body) is None else TokenNames(text.token_text, body.return_tokens_as_token_ids)
            ),
            prompt_text=asked.said if isinstance(body, ChatRequest) and body.return_prompt_text else UNSET,
        )
        visit.reserve(sum(map(len, asked.prompts)) + sum(submit.max_tokens for submit in submits))
        trace = self.tracing.begin(request.headers, body, envelope.id)
        context = Context(deadline=wall + timeout, request_id=public_id(request), traceparent=trace.traceparent)
        if trace.traceparent is not None:
            submits = [replace(submit, traceparent=trace.traceparent) for submit in submits]
        outputs = [make_output(body, text, submit, asked.reading, index) for index, submit in enumerate(submits)]
        generations = [
            Generation(self.backend, submit, output, context, follows=index % each > 0)
            for index, (submit, output) in enumerate(zip(submits, outputs, strict=True))
        ]
        return CompletionResponse(
            shape,
            envelope,
            asked.prompts,
            body.n,
            generations,
            asked.echoes,
            trace,
            visit.spend,
            body.stream_interval,
            wall + timeout,
        )


@dataclass(frozen=True)
class Asked:
    """A checked body, and the tokens of what it says; of messages also the text."""

    body: GenerationOptions
    context_limit: int
    text: CheckpointText
    prompts: list[list[int]]
    rules: TokenRules
    echoes: list[Echo]
    said: str | UnsetType
    reading: Reading | None


async def _answer(request: Request, body: GenerationOptions, response: CompletionResponse) -> Response:
    if body.stream:
        return EventStreamResponse(response.stream)
    return json_answer(await while_connected(request.receive, response.collect()))


def echoes_of(body: GenerationOptions, prompts: list[list[int]], text: CheckpointText) -> list[Echo]:
    """What is to come before the answer to each prompt, where the body asks for it."""
    if isinstance(body, CompletionRequest) and body.echo:
        top, alone, decode = asked_logprobs(body), only_prompt(body), decoding(body, text)
        return [Echo.of(decode, prompt, top, alone) for prompt in prompts]
    if isinstance(body, ChatRequest) and body.echo and body.messages[-1].role == "assistant":
        return [Echo(body.messages[-1].text, [], None, False)]
    return []


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
