"""The response to one request for completions while it is made."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import starmap

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from livescale.services.gateway.envelope import (
    CompletionTokensDetails,
    Echo,
    Envelope,
    EventInterval,
    PromptTokensDetails,
    Usage,
)
from livescale.services.gateway.errors import ApiError, renamed
from livescale.services.gateway.generation import Generation, just_wait
from livescale.services.gateway.output import TextPiece, WholeChoice
from livescale.services.gateway.responses import Wait, Write
from livescale.services.gateway.shapes import ResponseShape
from livescale.services.gateway.spans import RequestTrace
from livescale.shared.messages.requests import TokenLogprobs
from livescale.shared.runtime.waiting import together

EmitChoice = Callable[[int, TextPiece], Awaitable[None]]


@dataclass(frozen=True)
class CompletionResponse:
    """The response to one request while it is made: as many generations for each prompt, of which the client gets
    the `n` likeliest, and the objects that it gets. `echoes` are the prompts where they are to come first. `spend`
    is told how many tokens were used. A stream's event has `interval` tokens. `deadline` is in
    seconds since the epoch. Errors call parameters by their `names`."""

    shape: ResponseShape
    envelope: Envelope
    prompts: list[list[int]]
    n: int
    generations: list[Generation]
    echoes: list[Echo]
    trace: RequestTrace
    spend: Callable[[int], None]
    interval: int = 1
    deadline: float = 0.0
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def each(self) -> int:
        """Return the choices that were generated for one prompt."""
        return len(self.generations) // len(self.prompts)

    async def stream(self, write: Write, wait: Wait) -> None:
        """Write chunks as tokens come, and call `wait` while none come. Raises ApiError."""
        begun: set[int] = set()
        asked = self.envelope
        held = [EventInterval(self.interval) for _ in self.generations]

        async def emit(index: int, fresh: TextPiece) -> None:
            nonlocal asked
            piece = held[index].add(fresh)
            if piece is None:
                return
            if not begun:
                asked = asked.made_by(self.generations[index].fingerprint)
            piece = self._after_prompt(index, piece, first=index not in begun)
            prompt = None if index in begun else self.prompts[index // self.each]
            begun.add(index)
            envelope = asked.with_usage(self._usage()) if asked.continuous else asked
            for chunk in self.shape.chunks(envelope, index, piece, prompt):
                await write(chunk)

        await self._run(emit, wait)
        if asked.usage_follows:
            for chunk in self.shape.ending(asked, self._usage()):
                await write(chunk)

    async def collect(self) -> msgspec.Struct:
        """Wait for all tokens, and return the whole object. Raises ApiError."""
        each = self.each
        made = [[WholeChoice(prompt) for _ in range(each)] for prompt in self.prompts]

        async def emit(index: int, piece: TextPiece) -> None:
            choice = made[index // each][index % each]
            choice.add(self._after_prompt(index, piece, first=not choice.texts))

        await self._run(emit, just_wait)
        envelope = self.envelope.made_by(self.generations[0].fingerprint)
        return self.shape.whole(envelope, [one for all in made for one in likeliest(all, self.n)], self._usage())

    async def _run(self, emit: EmitChoice, wait: Wait) -> None:
        outcome: str | None = "cancelled"
        try:
            with renamed(self.names):
                await self._generate(emit, wait)
            outcome = None
        except ApiError as error:
            outcome = error.detail.code
            raise
        finally:
            usage = self._usage()
            # A request that never began costs its client nothing.
            began = any(generation.generated for generation in self.generations)
            self.spend(usage.total_tokens if began else 0)
            self.trace.end(usage, self.generations, outcome)

    async def _generate(self, emit: EmitChoice, wait: Wait) -> None:
        """Run all generations. When one fails, the others are cancelled and ApiError is raised.

        The first of a prompt begins; the others follow with its first token, as the KV of the prompt is kept then, and
        have its log-probabilities of the prompt.
        """
        if len(self.generations) == 1:
            await self.generations[0].run(lambda piece: emit(0, piece), wait)
            return
        begun = [asyncio.Event() for _ in self.prompts]
        scored: dict[int, tuple[TokenLogprobs, ...]] = {}

        async def run_one(index: int, generation: Generation) -> None:
            prompt, choice = divmod(index, self.each)
            is_first = True

            async def emit_one(piece: TextPiece) -> None:
                nonlocal is_first
                if is_first:
                    scores = scored.setdefault(prompt, piece.prompt_logprobs)
                    piece, is_first = replace(piece, prompt_logprobs=scores), False
                begun[prompt].set()
                await emit(index, piece)

            if choice > 0:
                await begun[prompt].wait()
            await generation.run(emit_one, wait)

        await together(*starmap(run_one, enumerate(self.generations)))

    def _after_prompt(self, index: int, piece: TextPiece, *, first: bool) -> TextPiece:
        if not self.echoes:
            return piece
        echo = self.echoes[index // self.each]
        return echo.first(piece) if first else echo.later(piece)

    def _usage(self) -> Usage:
        prompt = sum(len(one) for one in self.prompts)
        dropped = any(echo.alone for echo in self.echoes)
        completion = 0 if dropped else sum(len(generation.generated) for generation in self.generations)
        cached = sum(generation.cached_tokens for generation in self.generations[:: self.each])
        reasoning = [tokens for one in self.generations if (tokens := one.output.reasoning_tokens) is not None]
        details = CompletionTokensDetails(sum(reasoning)) if reasoning else UNSET
        return Usage(prompt, completion, prompt + completion, PromptTokensDetails(cached), details)


def likeliest(choices: list[WholeChoice], n: int) -> list[WholeChoice]:
    """The `n` likeliest of a prompt's choices, a token; of equally likely ones the first."""
    if n == len(choices):
        return choices
    return sorted(choices, key=lambda choice: choice.mean_logprob, reverse=True)[:n]
