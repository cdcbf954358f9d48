"""Answers that repeat themselves: what a body asks for, and how they end. Pure."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.output import Output, TextPiece
from livescale.services.gateway.progress import Fresh

REPEATED = "repetition_detected"  # the stop reason, as in vLLM


class RepetitionDetection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer ends where its last tokens are a pattern, of at least `min_pattern_size` tokens, `min_count` times."""

    max_pattern_size: Annotated[int, Meta(ge=0, le=1024)] = 0
    min_pattern_size: Annotated[int, Meta(ge=0, le=1024)] = 0
    min_count: Annotated[int, Meta(ge=0, le=1024)] = 0


def check_repetition(asked: RepetitionDetection) -> None:
    """Check what the bounds of single fields cannot say. Raises ApiError 400."""
    if asked.min_pattern_size > asked.max_pattern_size:
        raise bad_request(
            "'min_pattern_size' is more than 'max_pattern_size'; give at most that.",
            "repetition_detection.min_pattern_size",
        )
    if asked.max_pattern_size and asked.min_count < 2:
        raise bad_request(
            "'min_count' is less than 2, and what comes once is not repeated; give at least 2.",
            "repetition_detection.min_count",
        )


class RepetitionOutput:
    """Hands tokens on to another output until they repeat; nothing ends before `min_tokens`."""

    def __init__(self, output: Output, asked: RepetitionDetection, min_tokens: int) -> None:
        self._output = output
        self._asked = asked
        self._min_tokens = min_tokens
        self._tokens: list[int] = []

    @property
    def reasoning_tokens(self) -> int | None:
        return self._output.reasoning_tokens

    def feed(self, fresh: Fresh) -> TextPiece:
        """Return the next piece; with a reason where the request is over, or goes on and on."""
        for place, token_id in enumerate(fresh.token_ids, start=1):
            self._tokens.append(token_id)
            if len(self._tokens) >= self._min_tokens and repeats(self._tokens, self._asked):
                return self._last(fresh, place)
        return self._output.feed(fresh)

    def _last(self, fresh: Fresh, place: int) -> TextPiece:
        """The last piece, with what was held back of its text."""
        if place == len(fresh.token_ids) and fresh.finish_reason is not None:
            return self._output.feed(fresh)
        cut = replace(fresh, token_ids=fresh.token_ids[:place], logprobs=fresh.logprobs[:place], finish_reason="length")
        piece = self._output.feed(cut)
        if piece.finish_reason != "length":
            return piece
        return replace(piece, finish_reason="repetition", stop_reason=REPEATED)


def repeats(tokens: Sequence[int], asked: RepetitionDetection) -> bool:
    """Whether the last tokens are a pattern that is repeated as often as that."""
    for length in range(max(1, asked.min_pattern_size), asked.max_pattern_size + 1):
        if length * asked.min_count > len(tokens):
            return False
        # A text repeats a pattern where each token is the one a pattern earlier.
        span = length * (asked.min_count - 1)
        if all(tokens[-place] == tokens[-place - length] for place in range(1, span + 1)):
            return True
    return False
