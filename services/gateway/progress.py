"""What has come of a request so far, and what follows from it: its state, the order of its tokens. Pure."""

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from livescale.shared.messages.requests import FinishReason, Submit, Tokens
from livescale.shared.policy.state_machine import StateMachine


class GenerationState(StrEnum):
    """A `new` request may be refused; an `accepted` one is held or being made; a `lost` one is submitted again with the
    tokens that it has."""

    NEW = "new"
    ACCEPTED = "accepted"
    LOST = "lost"
    ENDED = "ended"


MOVES = StateMachine(
    "a request",
    {
        GenerationState.NEW: frozenset({GenerationState.ACCEPTED, GenerationState.ENDED}),
        GenerationState.ACCEPTED: frozenset({GenerationState.LOST, GenerationState.ENDED}),
        GenerationState.LOST: frozenset({GenerationState.ACCEPTED, GenerationState.ENDED}),
        GenerationState.ENDED: frozenset(),
    },
)


@dataclass(frozen=True)
class Fresh:
    """Tokens that the stream did not have yet, in order. With a `finish_reason` they are the last."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    error: str | None = None
    code: int | None = None
    cached_tokens: int = 0


@dataclass(frozen=True)
class Gap:
    """Tokens from `index` on are missing: they have to be sent again."""

    index: int


class TokenSequence:
    """Accepts rows of one request. `received` counts the tokens that are in order so far."""

    def __init__(self, received: int = 0) -> None:
        self.received = received
        self._finished = False

    def accept(self, row: Tokens) -> Fresh | Gap | None:
        """What is new in `row`; None where nothing is. A row behind a gap is dropped: a replay brings it again."""
        if self._finished:
            return None
        if row.index > self.received:
            return Gap(self.received)
        token_ids = tuple(row.token_ids[self.received - row.index :])
        if not token_ids and row.finish_reason is None:
            return None
        self.received += len(token_ids)
        self._finished = row.finish_reason is not None
        return Fresh(token_ids, row.finish_reason, row.error, row.code, row.cached_tokens)


def resumed(submit: Submit, generated: list[int], attempt: int, version: str | None) -> Submit:
    """The same request, to be continued elsewhere. A new id, so that a worker that is not quite dead is not heard.

    With tokens it goes on by the version that made them, else by any.
    """
    return msgspec.structs.replace(
        submit,
        request_id=f"{submit.request_id}-{attempt + 1}",
        generated=[*submit.generated, *generated],
        version=version if generated else None,
    )


def already_ended(submit: Submit, generated: list[int]) -> FinishReason | None:
    """Why a request with these tokens has nothing left to generate; only the word of it was lost."""
    if generated and generated[-1] in submit.stop_token_ids and len(generated) > submit.min_tokens:
        return "stop"
    return "length" if len(generated) >= submit.max_tokens else None
