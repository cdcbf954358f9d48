"""The order of a request's tokens: every index once, whatever was lost, repeated or sent by two workers."""

from dataclasses import dataclass

from livescale.shared.messages.requests import FinishReason, Tokens


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
