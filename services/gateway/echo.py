"""Prompts that come before what is generated, as clients of completions ask for. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from livescale.services.gateway.output import Decode, StopReason, TextPiece, certain_part


@dataclass(frozen=True)
class Echo:
    """One prompt, its `text` and its tokens. `top` is there where log-probabilities are told: so many of the likeliest.
    With `alone` nothing follows it: what was generated is dropped."""

    text: str
    prompt: Sequence[int]
    top: int | None
    alone: bool

    @classmethod
    def of(cls, decode: Decode, prompt: Sequence[int], top: int | None, alone: bool) -> "Echo":
        """The echo of these tokens. A character that they begin comes with the answer, where there is one."""
        text = decode(prompt)
        return cls(text if alone else certain_part(text), prompt, top, alone)

    def first(self, piece: TextPiece) -> TextPiece:
        """The first piece of the answer, after the prompt."""
        piece = self.later(piece)
        if self.top is None:
            return replace(piece, text=self.text + piece.text)
        told = (replace(one, top=one.top[: self.top]) for one in piece.prompt_logprobs)
        return replace(
            piece,
            text=self.text + piece.text,
            echoed=tuple(self.prompt),
            logprobs=(None, *told, *piece.logprobs),  # of the first token nothing is known
        )

    def later(self, piece: TextPiece) -> TextPiece:
        """Return a later piece of the answer, in which nothing of the prompt is repeated."""
        if not self.alone:
            return piece
        reason: StopReason | None = None if piece.finish_reason is None else "length"
        return TextPiece("", (), reason, prompt_logprobs=piece.prompt_logprobs)
