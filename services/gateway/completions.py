"""The completions API: a body is checked, its prompts tokenized, its generations run, and the response made of them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.access import Visit
from livescale.services.gateway.bodies import ChatRequest, CompletionRequest, GenerationOptions
from livescale.services.gateway.checkpoint_text import CheckpointText
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.generation import Backend, Generation, just_wait
from livescale.services.gateway.logprobs import TokenNames
from livescale.services.gateway.models import RegisteredModels, context_tokens
from livescale.services.gateway.output import TextPiece, WholeChoice
from livescale.services.gateway.parse import parse_body, read_body
from livescale.services.gateway.responses import EventStreamResponse, Wait, Write, json_answer, while_connected
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.shapes import (
    ChatShape,
    CompletionShape,
    Envelope,
    PromptTokensDetails,
    ResponseShape,
    Usage,
)
from livescale.services.gateway.spans import RequestTrace, Tracing
from livescale.services.gateway.submission import (
    Origin,
    asked_logprobs,
    banned,
    check_choices,
    check_options,
    choices,
    make_output,
    make_submit,
    rendering_way,
    spellings,
    split_prompts,
    truncated,
)
from livescale.services.gateway.templates import Templates, render_chat
from livescale.shared.bus.contract import Context
from livescale.shared.runtime.clock import Ids

Emit = Callable[[int, TextPiece], Awaitable[None]]


@dataclass(frozen=True)
class Completions:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError."""

    settings: GatewaySettings
    gateway: str
    ids: Ids
    backend: Backend
    models: RegisteredModels
    templates: Templates
    tracing: Tracing

    async def completion(self, request: Request) -> Response:
        """Answer POST /v1/completions: one choice for each prompt."""
        body = parse_body(await read_body(request, self.settings.max_body_bytes), CompletionRequest)
        check_options(body)
        entry = await self.models.find(body.model)
        text = await self.models.text(entry)
        special = body.add_special_tokens
        prompts = [
            one if isinstance(one, list) else await self.models.encode(text, one, add_special_tokens=special)
            for one in split_prompts(body, self.settings.max_prompts)
        ]
        return await self._answer(request, body, context_tokens(entry), text, prompts, CompletionShape())

    async def chat(self, request: Request) -> Response:
        """Answer POST /v1/chat/completions: the prompt is what the checkpoint's template makes of the messages."""
        body = parse_body(await read_body(request, self.settings.max_body_bytes), ChatRequest)
        check_options(body)
        entry = await self.models.find(body.model)
        text = await self.models.text(entry)
        said = await render_chat(self.templates, text, body.messages, rendering_way(body))
        prompt = await self.models.encode(text, said, add_special_tokens=body.add_special_tokens)
        return await self._answer(request, body, context_tokens(entry), text, [prompt], ChatShape())

    async def _answer(
        self,
        request: Request,
        body: GenerationOptions,
        context_limit: int,
        text: CheckpointText,
        prompts: list[list[int]],
        shape: ResponseShape,
    ) -> Response:
        check_choices(body, len(prompts), self.settings.max_prompts)
        prompts = [truncated(body, prompt, context_limit) for prompt in prompts]
        asked = Asked(body, context_limit, text, prompts, await self._bad_words(body, text))
        response = self._response(request, asked, shape)
        if body.stream:
            return EventStreamResponse(response.stream)
        return json_answer(await while_connected(request.receive, response.collect()))

    async def _bad_words(self, body: GenerationOptions, text: CheckpointText) -> list[list[int]]:
        words = []
        for word in body.bad_words:
            plain, spaced = [
                await self.models.encode(text, spelling, add_special_tokens=False) for spelling in spellings(word)
            ]
            words.extend(banned(plain, spaced))
        return words

    def _response(self, request: Request, asked: "Asked", shape: ResponseShape) -> "CompletionResponse":
        """Check the limits, and prepare a generation for each choice of each prompt. Nothing runs yet."""
        request_id, wall, body, text = self.ids.new("req"), self.backend.clock.wall(), asked.body, asked.text
        timeout = min(body.timeout or self.settings.default_timeout_s, self.settings.max_timeout_s)
        each, options = choices(body), body.stream_options
        count = each * len(asked.prompts)
        submits = [
            make_submit(
                body,
                asked.prompts[index // each],
                text,
                asked.context_limit,
                Origin(
                    request_id if count == 1 else f"{request_id}-p{index}", self.gateway, wall + timeout, index % each
                ),
                asked.bad_words,
            )
            for index in range(count)
        ]
        envelope = Envelope(
            id=f"{shape.prefix}-{request_id.removeprefix('req-')}",
            created=int(wall),
            model=body.model,
            token_ids=body.return_token_ids,
            usage_follows=options is not None and options.include_usage,
            continuous=options is not None and options.include_usage and options.continuous_usage_stats,
            names=(
                None if asked_logprobs(body) is None else TokenNames(text.token_text, body.return_tokens_as_token_ids)
            ),
        )
        visit: Visit = request.state.visit
        visit.reserve(sum(len(submit.prompt) + submit.max_tokens for submit in submits))
        trace = self.tracing.begin(request.headers, body, envelope.id)
        context = Context(deadline=wall + timeout, request_id=public_id(request), traceparent=trace.traceparent)
        if trace.traceparent is not None:
            submits = [replace(submit, traceparent=trace.traceparent) for submit in submits]
        generations = [Generation(self.backend, submit, make_output(body, text, submit), context) for submit in submits]
        return CompletionResponse(shape, envelope, asked.prompts, body.n, generations, trace, visit.spend)


@dataclass(frozen=True)
class Asked:
    """A checked body, and the tokens of what it says."""

    body: GenerationOptions
    context_limit: int
    text: CheckpointText
    prompts: list[list[int]]
    bad_words: list[list[int]]


@dataclass(frozen=True)
class CompletionResponse:
    """The response to one request while it is made: as many generations for each prompt, of which the client gets the
    `n` likeliest, and the objects that it gets. `spend` is told how many tokens were used."""

    shape: ResponseShape
    envelope: Envelope
    prompts: list[list[int]]
    n: int
    generations: list[Generation]
    trace: RequestTrace
    spend: Callable[[int], None]

    @property
    def each(self) -> int:
        """The generations of a prompt."""
        return len(self.generations) // len(self.prompts)

    async def stream(self, write: Write, wait: Wait) -> None:
        """Write chunks as tokens come, and call `wait` while none come. Raises ApiError."""
        begun: set[int] = set()

        async def emit(index: int, piece: TextPiece) -> None:
            prompt = None if index in begun else self.prompts[index // self.each]
            begun.add(index)
            envelope = self.envelope.with_usage(self._usage()) if self.envelope.continuous else self.envelope
            for chunk in self.shape.chunks(envelope, index, piece, prompt):
                await write(chunk)

        await self._run(emit, wait)
        if self.envelope.usage_follows:
            await write(self.shape.usage_chunk(self.envelope, self._usage()))

    async def collect(self) -> msgspec.Struct:
        """Wait for all tokens, and return the whole object. Raises ApiError."""
        each = self.each
        made = [[WholeChoice(prompt) for _ in range(each)] for prompt in self.prompts]

        async def emit(index: int, piece: TextPiece) -> None:
            made[index // each][index % each].add(piece)

        await self._run(emit, just_wait)
        return self.shape.whole(self.envelope, [one for all in made for one in likeliest(all, self.n)], self._usage())

    async def _run(self, emit: Emit, wait: Wait) -> None:
        outcome: str | None = "cancelled"
        try:
            await self._generate(emit, wait)
            outcome = None
        except ApiError as error:
            outcome = error.detail.code
            raise
        finally:
            usage = self._usage()
            # A request that never began costs its client nothing.
            self.spend(usage.total_tokens if usage.completion_tokens else 0)
            self.trace.end(usage, self.generations, outcome)

    async def _generate(self, emit: Emit, wait: Wait) -> None:
        """Run all generations. When one fails, the others are cancelled and ApiError is raised.

        The first of a prompt begins; the others follow with its first token, as the KV of the prompt is kept then.
        """
        if len(self.generations) == 1:
            await self.generations[0].run(lambda piece: emit(0, piece), wait)
            return
        failed: ApiError | None = None
        begun = [asyncio.Event() for _ in self.prompts]

        async def run_one(index: int, generation: Generation) -> None:
            prompt, choice = divmod(index, self.each)

            async def emit_one(piece: TextPiece) -> None:
                begun[prompt].set()
                await emit(index, piece)

            if choice > 0:
                await begun[prompt].wait()
            await generation.run(emit_one, wait)

        try:
            async with asyncio.TaskGroup() as group:
                for index, generation in enumerate(self.generations):
                    group.create_task(run_one(index, generation), name=f"choice {index}")
        except* ApiError as errors:
            failed = next(error for error in errors.exceptions if isinstance(error, ApiError))
        if failed is not None:
            raise failed

    def _usage(self) -> Usage:
        prompt = sum(len(one) for one in self.prompts)
        completion = sum(len(generation.generated) for generation in self.generations)
        cached = sum(generation.cached_tokens for generation in self.generations)
        return Usage(prompt, completion, prompt + completion, PromptTokensDetails(cached))


def likeliest(choices: list[WholeChoice], n: int) -> list[WholeChoice]:
    """The `n` likeliest of a prompt's choices, a token; of equally likely ones the first."""
    if n == len(choices):
        return choices
    return sorted(choices, key=lambda choice: choice.mean_logprob, reverse=True)[:n]


def public_id(request: Request) -> str:
    """The id that clients know the request by: the one they gave it, otherwise the gateway's."""
    return str(request.state.request_id)
