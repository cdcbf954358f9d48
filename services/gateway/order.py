"""A checked request on its way: its generations side by side, and the answer made of them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from opentelemetry.trace import Span

from livescale.services.gateway.answers import PromptTokensDetails, Usage
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.event_stream import Wait, Write
from livescale.services.gateway.generation import Generation, just_wait
from livescale.services.gateway.output import Piece
from livescale.services.gateway.shapes import Choice, Frame, Shape
from livescale.services.gateway.tracing import end_span

Emit = Callable[[int, Piece], Awaitable[None]]


@dataclass(frozen=True)
class Order:
    """One generation per choice, each with its prompt."""

    shape: Shape
    frame: Frame
    prompts: list[list[int]]
    generations: list[Generation]
    span: Span
    spend: Callable[[int], None]

    async def stream(self, write: Write, wait: Wait) -> None:
        """Write chunks as they come. Raises ApiError."""
        begun: set[int] = set()

        async def emit(index: int, piece: Piece) -> None:
            prompt = None if index in begun else self.prompts[index]
            begun.add(index)
            for chunk in self.shape.chunks(self.frame, index, piece, prompt):
                await write(chunk)

        await self._run(emit, wait)
        if self.frame.usage_follows:
            await write(self.shape.usage_chunk(self.frame, self._usage()))

    async def collect(self) -> msgspec.Struct:
        """The whole answer. Raises ApiError."""
        choices = [Choice(prompt) for prompt in self.prompts]

        async def emit(index: int, piece: Piece) -> None:
            choices[index].add(piece)

        await self._run(emit, just_wait)
        return self.shape.whole(self.frame, choices, self._usage())

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
            # What never began costs its client nothing.
            self.spend(usage.total_tokens if usage.completion_tokens else 0)
            end_span(self.span, usage.prompt_tokens, usage.completion_tokens, outcome)

    async def _generate(self, emit: Emit, wait: Wait) -> None:
        """All at once. Raises ApiError when one fails; the others are cancelled."""
        if len(self.generations) == 1:
            await self.generations[0].run(lambda piece: emit(0, piece), wait)
            return
        failed: ApiError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for index, generation in enumerate(self.generations):
                    group.create_task(_run_one(index, generation, emit, wait), name=f"choice {index}")
        except* ApiError as errors:
            failed = next(error for error in errors.exceptions if isinstance(error, ApiError))
        if failed is not None:
            raise failed

    def _usage(self) -> Usage:
        prompt = sum(len(one) for one in self.prompts)
        completion = sum(len(generation.generated) for generation in self.generations)
        cached = sum(generation.cached_tokens for generation in self.generations)
        return Usage(prompt, completion, prompt + completion, PromptTokensDetails(cached))


async def _run_one(index: int, generation: Generation, emit: Emit, wait: Wait) -> None:
    await generation.run(lambda piece: emit(index, piece), wait)
