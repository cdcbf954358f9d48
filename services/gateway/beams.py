"""Beam search: of all continuations of a prompt the likeliest are kept, token by token.

Each step asks the workers for one token after each beam, and for the likeliest in its place. What a beam's tokens have
in common with others comes from the prefix cache, and no worker needs to know of beams.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from livescale.services.gateway.bodies import GenerationOptions
from livescale.services.gateway.completion_response import CompletionResponse, EmitChoice
from livescale.services.gateway.generation import Generation, Wait
from livescale.services.gateway.output import Output, StopReason, TextPiece
from livescale.services.gateway.progress import Fresh
from livescale.services.gateway.streams import Backend
from livescale.shared.bus.contract import Context
from livescale.shared.messages.requests import MOST_LOGPROBS, Sampling, Submit, TokenLogprobs
from livescale.shared.runtime.waiting import together

Generate = Callable[[Submit, Output, bool], Generation]  # the last says that it follows an earlier one
MOST_BEAMS = MOST_LOGPROBS // 2  # of each beam twice as many continuations are looked at, as some of them end


@dataclass(frozen=True)
class Beam:
    """A continuation so far, and how likely it is. `ends` says that its last token ends a text."""

    tokens: tuple[int, ...] = ()
    logprob: float = 0.0
    logprobs: tuple[TokenLogprobs, ...] = ()
    ends: bool = False

    def score(self, prompt_tokens: int, length_penalty: float) -> float:
        """How good the beam is beside others, as in vLLM: by its log-probability for its length with the prompt."""
        length = prompt_tokens + len(self.tokens) - self.ends
        return self.logprob / math.pow(max(1, length), length_penalty)

    def fresh(self, top: int | None) -> Fresh:
        """The beam as tokens that come at once, with so many of the likeliest in their places; None: without
        log-probabilities."""
        told = () if top is None else tuple(replace(one, top=one.top[:top]) for one in self.logprobs)
        return Fresh(self.tokens, "stop" if self.ends else "length", logprobs=told)


def extended(beams: Sequence[Beam], found: Sequence[TokenLogprobs], ends: frozenset[int]) -> list[Beam]:
    """All continuations of these beams by one token, of which each has `found` the likeliest; the likeliest first."""
    grown = [
        Beam(
            (*beam.tokens, token),
            beam.logprob + logprob,
            (*beam.logprobs, replace(told, chosen=logprob)),
            ends=token in ends,
        )
        for beam, told in zip(beams, found, strict=True)
        for token, logprob in told.top
    ]
    return sorted(grown, key=lambda beam: -beam.logprob)


class BeamSearch:
    """Searches the continuations of one prompt. `generate` makes the generation that a submission asks for."""

    def __init__(self, submit: Submit, width: int, length_penalty: float, generate: Generate) -> None:
        self._submit = submit
        self._width = width
        self._length_penalty = length_penalty
        self._generate = generate
        self._ends = frozenset(submit.stop_token_ids)
        self.cached_tokens = 0
        self.version: str | None = None  # of the model

    async def run(self, wait: Wait) -> list[Beam]:
        """The best beams, the best one first. Raises ApiError."""
        beams, ended = [Beam()], list[Beam]()
        for _ in range(self._submit.max_tokens):
            grown = extended(beams, await self._step(beams, wait), self._ends)
            ended += [beam for beam in grown if beam.ends]
            beams = [beam for beam in grown if not beam.ends][: self._width]
            if not beams:
                break
        prompt = len(self._submit.prompt)
        best = sorted((*ended, *beams), key=lambda beam: -beam.score(prompt, self._length_penalty))
        return best[: self._width]

    async def _step(self, beams: Sequence[Beam], wait: Wait) -> list[TokenLogprobs]:
        """The likeliest tokens after each beam."""
        outputs = [OneToken() for _ in beams]
        asked = [
            self._generate(self._after(beam, place), output, len(beam.tokens) > 0)
            for place, (beam, output) in enumerate(zip(beams, outputs, strict=True))
        ]
        await together(*(one.run(_drop, wait) for one in asked))
        if not beams[0].tokens:
            self.cached_tokens, self.version = asked[0].cached_tokens, asked[0].version
        return [output.told for output in outputs]

    def _after(self, beam: Beam, place: int) -> Submit:
        return replace(
            self._submit,
            request_id=f"{self._submit.request_id}-b{len(beam.tokens)}-{place}",
            prompt=[*self._submit.prompt, *beam.tokens],
            sampling=Sampling(logprobs=2 * self._width),
            max_tokens=1,
            open_ended=False,
            stop_token_ids=[],
            context_id=None,
            follows=f"{self._submit.request_id}-b{len(beam.tokens) - 1}-0" if beam.tokens else None,
        )


class OneToken:
    """Keeps what was told of the token that was asked for."""

    reasoning_tokens: int | None = None

    def __init__(self) -> None:
        self.told = TokenLogprobs(0.0)

    def feed(self, fresh: Fresh) -> TextPiece:
        for told in fresh.logprobs:
            self.told = told
        reason: StopReason | None = None if fresh.finish_reason is None else "length"
        return TextPiece("", fresh.token_ids, reason)


async def _drop(piece: TextPiece) -> None:
    """Nobody is shown a beam before the search is over."""


def searches_of(
    body: GenerationOptions, submits: Sequence[Submit], backend: Backend, context: Context
) -> list[BeamSearch]:
    """The search for each prompt; each of its beams is a submission."""

    def generate(submit: Submit, output: Output, follows: bool) -> Generation:
        return Generation(backend, submit, output, context, follows=follows)

    return [BeamSearch(submit, body.n, body.length_penalty, generate) for submit in submits[:: body.n]]


@dataclass(frozen=True)
class BeamResponse(CompletionResponse):
    """The same with a search for each prompt; each of its generations has the text of one beam, and does not run.
    `top` of the likeliest tokens are told, None where no log-probabilities are."""

    searches: Sequence[BeamSearch] = ()
    top: int | None = None

    async def _generate(self, emit: EmitChoice, wait: Wait) -> None:
        for place, search in enumerate(self.searches):
            beams = await search.run(wait)
            for choice, beam in enumerate(beams):
                index = place * self.each + choice
                generation = self.generations[index]
                piece = generation.output.feed(beam.fresh(self.top))
                generation.generated.extend(piece.token_ids)
                generation.finish_reason = piece.finish_reason
                generation.cached_tokens, generation.version = search.cached_tokens, search.version
                await emit(index, piece)
