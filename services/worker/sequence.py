"""A request as the scheduler sees it: which of its positions are computed, which come next, how it ends."""

from collections.abc import Iterator

from services.worker.batch import PREFILL_CHUNK, Draw, Piece
from shared.messages.requests import FinishReason, Submit


class Sequence:
    """A request's tokens, prompt and generated; the KV of the first `computed` of them is in the cache."""

    def __init__(self, request: Submit, arrival: int) -> None:
        self.request = request
        self.arrival = arrival
        self.tokens = [*request.prompt, *request.generated]
        self.blocks = range(0)
        self.computed = 0
        self.preempted = False  # ever

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt)

    @property
    def generated(self) -> int:
        """How many tokens were generated, those before a resumption included."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens that are not yet prefilled."""
        return max(self.prompt_tokens - self.computed, 0)

    @property
    def decodes(self) -> bool:
        """Whether only the row of the last token is left, so that each step yields a token."""
        return self.computed >= self.prompt_tokens and self.computed == len(self.tokens) - 1

    def pieces(self, budget: int) -> Iterator[Piece]:
        """What may be computed next in at most `budget` rows: whole chunks of the prompt, then generated positions."""
        start = self.computed
        while start < self.prompt_tokens:
            stop = min(start + PREFILL_CHUNK, self.prompt_tokens)
            if stop - start > budget:
                return
            yield self._piece(start, stop, decode=False)
            budget -= stop - start
            start = stop
        stop = min(start + budget, len(self.tokens))
        if start < stop:
            yield self._piece(start, stop, decode=True)

    def preempt(self) -> None:
        """The KV is gone; the tokens stay."""
        self.blocks, self.computed, self.preempted = range(0), 0, True

    def append(self, token: int) -> FinishReason | None:
        """Take a chosen token; why the request ends with it, or None."""
        self.tokens.append(token)
        if token in self.request.stop_token_ids:
            return "stop"
        return "length" if self.generated == self.request.max_tokens else None

    def _piece(self, start: int, stop: int, *, decode: bool) -> Piece:
        tokens = tuple(self.tokens[start:stop])
        draw = self._draw() if stop == len(self.tokens) else None
        return Piece(self.request_id, tokens, start, self.blocks, decode, draw)

    def _draw(self) -> Draw:
        forbidden = self.request.stop_token_ids if self.generated < self.request.min_tokens else ()
        return Draw(self.request.sampling, self.generated, tuple(forbidden))
