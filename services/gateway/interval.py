"""Pieces of a choice that are joined until there are enough tokens for an event. Pure."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import fields

from livescale.services.gateway.output import TextPiece
from livescale.services.gateway.tool_calls.message import Delta

ENDS = frozenset(("finish_reason", "stop_reason"))


class EventInterval:
    """Holds pieces back until they have so many `tokens`, but never the first one or the last one."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._held: list[TextPiece] = []
        self._begun = False

    def add(self, piece: TextPiece) -> TextPiece | None:
        """The piece to send now, None where it is to wait."""
        if not self._held and len(piece.token_ids) >= self._tokens:
            self._begun = True
            return piece
        self._held.append(piece)
        enough = sum(len(one.token_ids) for one in self._held) >= self._tokens
        if self._begun and not enough and piece.finish_reason is None:
            return None
        self._begun = True
        pieces, self._held = self._held, []
        return joined(pieces)


def joined(pieces: Sequence[TextPiece]) -> TextPiece:
    """One piece that says what these say one after the other. How it ends is what the last one says."""
    last = pieces[-1]
    if len(pieces) == 1:
        return last
    whole: dict[str, Any] = {}
    for field in fields(TextPiece):
        values = [getattr(piece, field.name) for piece in pieces]
        match getattr(last, field.name):
            case _ if field.name == "calls":
                delta = Delta()
                for call in (call for value in values for call in value):
                    delta.add_call(call)
                whole[field.name] = tuple(delta.calls)
            case str() if field.name not in ENDS:
                whole[field.name] = "".join(values)
            case tuple():
                whole[field.name] = tuple(one for value in values for one in value)
            case end:
                whole[field.name] = end
    return TextPiece(**whole)
