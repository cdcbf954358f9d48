"""How far a request has come, and what follows from it: its state, its tokens' order, how it is resumed. Pure."""

from enum import StrEnum

import msgspec

from livescale.services.gateway.errors import ApiError, from_end, timed_out
from livescale.shared.messages.requests import FinishReason, Submit, TokenLogprobs, Tokens
from livescale.shared.policy.invariants import StateMachine


class GenerationState(StrEnum):
    """The states of a request at the gateway. A `new` one may be refused; an `accepted` one is held or being made; a
    `lost` one is submitted again with the tokens that it has."""

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


class Fresh(msgspec.Struct, frozen=True):
    """Tokens that were not there yet, in order. With a `finish_reason` they are the last; `code` is the HTTP status of
    an error."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    error: str | None = None
    code: int | None = None
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class Gap(msgspec.Struct, frozen=True):
    """Tokens from `index` on are missing, and have to be sent again."""

    index: int


class TokenSequence:
    """Puts one request's tokens in order: each index once, whatever was lost, repeated or sent by two workers.
    `received` counts the tokens that are in order so far."""

    def __init__(self, received: int = 0) -> None:
        self.received = received
        self._finished = False

    def accept(self, row: Tokens) -> Fresh | Gap | None:
        """Return what is new in `row`, None where nothing is. A row behind a gap is dropped, as a replay brings it
        again."""
        if self._finished:
            return None
        if row.index > self.received:
            return Gap(self.received)
        known = self.received - row.index
        token_ids, logprobs = tuple(row.token_ids[known:]), tuple(row.logprobs[known:])
        of_prompt = () if self.received else tuple(row.prompt_logprobs)
        if not token_ids and row.finish_reason is None:
            return None
        self.received += len(token_ids)
        self._finished = row.finish_reason is not None
        return Fresh(token_ids, row.finish_reason, row.error, row.code, row.cached_tokens, logprobs, of_prompt)


def resumed(submit: Submit, generated: list[int], attempt: int, version: str | None) -> Submit:
    """The same request with its tokens so far, to be continued elsewhere. It has a new id, so that a worker that is
    still alive after all is not heard.

    With tokens it goes on by the version of the model that made them, otherwise by any version.
    """
    return msgspec.structs.replace(
        submit,
        request_id=f"{submit.request_id}-{attempt + 1}",
        generated=[*submit.generated, *generated],
        prompt_logprobs=None if generated else submit.prompt_logprobs,  # they came with the first token
        version=version if generated else None,
        follows=None,  # it may have been lost with that one
    )


def already_ended(submit: Submit, generated: list[int]) -> FinishReason | None:
    """The finish reason of a lost request that has nothing left to generate; None where it has to go on."""
    if generated and generated[-1] in submit.stop_token_ids and len(generated) > submit.min_tokens:
        return "stop"
    return "length" if len(generated) >= submit.max_tokens else None


def failure(fresh: Fresh, grammar_param: str | None = None) -> ApiError | None:
    """The error that a client gets where its request did not end on its own; None where it did. A grammar that cannot
    be followed is that of the `grammar_param`."""
    match fresh.finish_reason:
        case "error":
            return from_end(fresh.code, fresh.error or "no reason given", grammar_param)
        case "deadline":
            return timed_out("The request's deadline has passed.")
        case _:
            return None
