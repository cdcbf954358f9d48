"""The tokens so far of requests whose next token depends on them: the last stage remembers what it was told. Pure.

A message of the bus has room for a few hundred thousand tokens, and a batch may have a hundred requests of thousands
each. So the leader tells the whole past of a request once, and then what is new.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from livescale.shared.messages.pipelines import StagePiece

MOST_TOKENS = 2 << 20  # that are remembered, of all requests


@dataclass(frozen=True)
class ToldPast:
    """What was told of a request: its prompt, each token once, and the tokens that were generated."""

    prompt: list[int]
    generated: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.generated)


class PastWindow:
    """The pasts of the requests that were drawn for last, at most `most_tokens` of them.

    The leader has one, which shortens pieces, and the last stage has one, which makes them whole again. Both see the
    same pieces in the same order, so they remember and forget the same.
    """

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._pasts: OrderedDict[str, ToldPast] = OrderedDict()
        self._tokens = 0

    def shorten(self, pieces: Sequence[StagePiece]) -> list[StagePiece]:
        """The pieces without what the last stage knows already."""
        return [self._shortened(piece) for piece in pieces]

    def complete(self, pieces: Sequence[StagePiece]) -> list[StagePiece]:
        """The pieces as they were before they were shortened. Raises ValueError where something is not known here."""
        return [self._completed(piece) for piece in pieces]

    def _shortened(self, piece: StagePiece) -> StagePiece:
        if not _has_past(piece):
            return piece
        told = self._pasts.get(piece.request_id)
        self._remember(piece)
        known = 0 if told is None else len(told.generated)
        if not 0 < known <= len(piece.generated):
            return piece
        return replace(piece, known=known, prompt=[], generated=piece.generated[known:])

    def _completed(self, piece: StagePiece) -> StagePiece:
        if piece.known:
            told = self._pasts.get(piece.request_id)
            if told is None or len(told.generated) < piece.known:
                raise ValueError(f"pieces: {piece.known} generated tokens of {piece.request_id} are not known here")
            generated = [*told.generated[: piece.known], *piece.generated]
            piece = replace(piece, known=0, prompt=told.prompt, generated=generated)
        if _has_past(piece):
            self._remember(piece)
        return piece

    def _remember(self, piece: StagePiece) -> None:
        """Remember what a whole piece says, in place of what was used less recently."""
        before, now = self._pasts.pop(piece.request_id, None), ToldPast(piece.prompt, piece.generated)
        self._pasts[piece.request_id] = now
        self._tokens += len(now) - (0 if before is None else len(before))
        while self._tokens > self._most_tokens and len(self._pasts) > 1:
            _, dropped = self._pasts.popitem(last=False)
            self._tokens -= len(dropped)


def _has_past(piece: StagePiece) -> bool:
    return piece.sampling is not None and bool(piece.prompt or piece.generated)
