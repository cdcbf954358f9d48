"""The completions API: a body is checked, its prompts tokenized, its generations run, and the response made of them."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.access import Visit
from livescale.services.gateway.asked import asked_logprobs, choices
from livescale.services.gateway.beam_response import BeamResponse
from livescale.services.gateway.beams import BeamSearch
from livescale.services.gateway.bodies import ChatRequest, CompletionRequest, GenerationOptions
from livescale.services.gateway.checkpoint_text import CheckpointText
from livescale.services.gateway.checks import check_choices, check_options
from livescale.services.gateway.completion_response import CompletionResponse
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.generation import Backend, Generation
from livescale.services.gateway.grammars import Grammars
from livescale.services.gateway.models import RegisteredModels, context_tokens
from livescale.services.gateway.output import Output
from livescale.services.gateway.parse import parse_body, read_body
from livescale.services.gateway.prompts import Prompts, echoes_of, envelope_of
from livescale.services.gateway.reading import reading_of
from livescale.services.gateway.renamed import NO_OTHERS, renamed
from livescale.services.gateway.rendering import rendering_way
from livescale.services.gateway.responses import EventStreamResponse, json_answer, while_connected
from livescale.services.gateway.sampling_options import banned, spellings
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.shapes import ChatShape, CompletionShape, ResponseShape
from livescale.services.gateway.spans import Tracing
from livescale.services.gateway.structured_options import constraint_of
from livescale.services.gateway.submission import (
    Origin,
    TokenRules,
    make_output,
    make_submit,
    split_prompts,
    truncated,
)
from livescale.services.gateway.templates import Templates, render_chat
from livescale.services.gateway.uses import check_generates
from livescale.shared.bus.contract import Context
from livescale.shared.messages.requests import Submit
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
        response = await self._prepare(request, await self.prompts_of_texts(body), CompletionShape())
        return await _answer(request, body, response)

    async def chat(self, request: Request) -> Response:
        """Answer POST /v1/chat/completions: the prompt is what the checkpoint's template makes of the messages."""
        body = parse_body(await read_body(request, self.settings.max_body_bytes), ChatRequest)
        return await _answer(request, body, await self.converse(request, body, ChatShape()))

    async def converse(
        self, request: Request, body: ChatRequest, shape: ResponseShape, names: Mapping[str, str] = NO_OTHERS
    ) -> CompletionResponse:
        """Prepare the response to a conversation, in this shape. Its errors, now and later, call parameters by their
        `names`. Nothing runs yet."""
        origin = public_id(request) if body.seed is None else str(body.seed)
        with renamed(names):
            response = await self._prepare(request, await self.prompt_of_chat(body, origin), shape)
        return dataclasses.replace(response, names=names)

    async def prompts_of_texts(self, body: CompletionRequest) -> Prompts:
        """What the body asks to be continued, as tokens. Raises ApiError."""
        check_options(body)
        served = await self.models.find_served(body.model)
        body, entry = replace(body, model=served.name), served.entry
        text = await self.models.text(entry)
        check_generates(body.model, text.use)
        special = body.add_special_tokens
        prompts = [
            one if isinstance(one, list) else await self.models.encode(text, one, add_special_tokens=special)
            for one in split_prompts(body.prompt, self.settings.max_prompts)
        ]
        return Prompts(body, served, text, context_tokens(entry), prompts)

    async def prompt_of_chat(self, body: ChatRequest, origin: str) -> Prompts:
        """What the body's conversation becomes, as tokens. Ids of calls are made from `origin`. Raises ApiError."""
        check_options(body)
        served = await self.models.find_served(body.model)
        body, entry = replace(body, model=served.name), served.entry
        text = await self.models.text(entry)
        check_generates(body.model, text.use)
        if body.chat_template is not None and not self.settings.trust_request_chat_template:
            raise bad_request(
                "'chat_template' is refused: the operator allows it with --trust-request-chat-template of the gateway, "
                "or LIVESCALE_TRUST_REQUEST_CHAT_TEMPLATE=1; leave it out.",
                "chat_template",
                code="unsupported_parameter",
            )
        said = await render_chat(self.templates, text, body.messages, rendering_way(body), body.chat_template)
        prompt = await self.models.encode(text, said, add_special_tokens=body.add_special_tokens)
        reading = reading_of(body, entry.spec, text, origin, said)
        return Prompts(body, served, text, context_tokens(entry), [prompt], said, reading)

    async def _prepare(self, request: Request, asked: Prompts, shape: ResponseShape) -> CompletionResponse:
        body, text, reading = asked.body, asked.text, asked.reading
        check_choices(body, len(asked.prompts), self.settings.max_prompts)
        prompts = [truncated(body, prompt, asked.context_limit) for prompt in asked.prompts]
        client = request.state.visit.who
        constraint = (None if reading is None else reading.constraint) or constraint_of(body)
        grammar = await self.grammars.of(constraint, text, client)
        if reading is not None and reading.grammar:
            grammar = reading.grammar
        param = None if constraint is None else constraint.param
        rules = TokenRules(await self._bad_words(body, text), grammar, param)
        return self._response(request, replace(asked, prompts=prompts), rules, shape)

    async def _bad_words(self, body: GenerationOptions, text: CheckpointText) -> list[list[int]]:
        words = []
        for word in body.bad_words:
            plain, spaced = [
                await self.models.encode(text, spelling, add_special_tokens=False) for spelling in spellings(word)
            ]
            words.extend(banned(plain, spaced))
        return words

    def _response(
        self, request: Request, asked: Prompts, rules: TokenRules, shape: ResponseShape
    ) -> CompletionResponse:
        """Check the limits, and prepare a generation for each choice of each prompt. Nothing runs yet."""
        request_id, wall, body, each = self.ids.new("req"), self.backend.clock.wall(), asked.body, choices(asked.body)
        deadline = wall + min(body.timeout or self.settings.default_timeout_s, self.settings.max_timeout_s)
        visit: Visit = request.state.visit
        submits = self._submits(request_id, asked, rules, deadline, visit.who)
        public = take_id(request, body) or request_id.removeprefix("req-")
        envelope = envelope_of(asked, f"{shape.prefix}-{public}", int(wall))
        visit.reserve(sum(map(len, asked.prompts)) + sum(submit.max_tokens for submit in submits))
        trace = self.tracing.begin(request.headers, body, envelope.id)
        if trace.traceparent is not None:
            submits = [replace(submit, traceparent=trace.traceparent) for submit in submits]
        context = Context(deadline=deadline, request_id=public_id(request), traceparent=trace.traceparent)
        outputs = [make_output(body, asked.text, submit, asked.reading, index) for index, submit in enumerate(submits)]
        generations = [
            Generation(
                self.backend, submit, output, context, follows=index % each > 0, grammar_param=rules.grammar_param
            )
            for index, (submit, output) in enumerate(zip(submits, outputs, strict=True))
        ]
        made = (
            shape,
            envelope,
            asked.prompts,
            body.n,
            generations,
            echoes_of(body, asked.prompts, asked.text),
            trace,
            visit.spend,
            body.stream_interval,
            deadline,
        )
        if not body.use_beam_search:
            return CompletionResponse(*made)
        return BeamResponse(*made, searches=self._searches(body, submits, context), top=asked_logprobs(body))

    def _submits(self, request_id: str, asked: Prompts, rules: TokenRules, deadline: float, who: str) -> list[Submit]:
        """One submission for each choice of each prompt; choices after a prompt's first follow that one."""
        each = choices(asked.body)
        count = each * len(asked.prompts)
        names = [request_id] if count == 1 else [f"{request_id}-p{index}" for index in range(count)]
        model, adapter = asked.served.entry.spec.name, asked.served.adapter
        submits = []
        for index, name in enumerate(names):
            origin = Origin(name, self.gateway, deadline, index % each, who)
            prompt = asked.prompts[index // each]
            submit = make_submit(asked.body, prompt, asked.text, asked.context_limit, origin, rules)
            follows = names[index - index % each] if index % each else None
            submits.append(replace(submit, model=model, adapter=adapter, follows=follows))
        return submits

    def _searches(self, body: GenerationOptions, submits: list[Submit], context: Context) -> list[BeamSearch]:
        """The search for each prompt; each of its beams is a submission."""

        def generate(submit: Submit, output: Output, follows: bool) -> Generation:
            return Generation(self.backend, submit, output, context, follows=follows)

        return [BeamSearch(submit, body.n, body.length_penalty, generate) for submit in submits[:: body.n]]


async def _answer(request: Request, body: GenerationOptions, response: CompletionResponse) -> Response:
    if body.stream:
        return EventStreamResponse(response.stream)
    return json_answer(await while_connected(request.receive, response.collect()))


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
