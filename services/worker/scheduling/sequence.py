"""A request as the scheduler sees it: which of its positions are computed, which come next, how it ends."""

from collections.abc import Iterator
from dataclasses import dataclass

from livescale.services.worker.kv.radix_tree import RadixNode
from livescale.services.worker.scheduling.batch import (
    PREFILL_CHUNK,
    KvImport,
    LayerEntry,
    ScheduledChunk,
    TokenSampling,
)
from livescale.shared.messages.requests import FinishReason, Submit
from livescale.shared.policy.priority_queue import queue_position


@dataclass(eq=False)
class LateKv:
    """KV of the first `layers` layers for the positions before `stop`, on its way here from another worker."""

    layers: int
    stop: int
    data: memoryview | None = None


@dataclass(eq=False)
class Filled:
    """KV of all layers, computed for whoever is to have the request while a pipeline still runs it, in the blocks from
    `first_block` on: of the positions before `stop`, and of those before `begun` at the end of steps under way."""

    first_block: int
    stop: int = 0
    begun: int = 0


NOTHING = Filled(0)  # never written to


class Sequence:
    """A request's tokens, prompt and generated; the KV of the first `computed` of them is in the cache.

    `entry`: where rows come in whose first layers were run before. `late`: KV of such layers that is not in the cache;
    nothing is decoded before it is. `held`: somebody else has to do with it, and no step is to run it. `in_flight`: a
    step runs it now. `filled`: where its KV is, too. `prefix`: up to where the prefix cache has its prompt; None where
    it is to have no more of it. `cached`: how many tokens of its prompt were there when it began.
    """

    def __init__(self, request: Submit, arrival: int) -> None:
        self.request = request
        self.arrival = arrival
        self.prompt_tokens = len(request.prompt)
        self.stops = tuple(request.stop_token_ids)
        self.tokens = [*request.prompt, *request.generated]
        self.blocks = range(0)
        self.computed = 0
        self.preempted = False  # ever
        self.entry: LayerEntry | None = None
        self.late: LateKv | None = None
        self.filled: Filled | None = None
        self.prefix: RadixNode | None = None
        self.cached = 0
        self.held = False
        self.in_flight = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def generated(self) -> int:
        """How many tokens were generated, those before a resumption included."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens that are not yet prefilled."""
        return max(self.prompt_tokens - self.computed, 0)

    @property
    def left(self) -> int:
        """Tokens that are not computed."""
        return len(self.tokens) - self.computed

    @property
    def layers_done(self) -> int:
        """Of all that is not computed."""
        return 0 if self.entry is None else self.entry.layer

    @property
    def lacks_kv(self) -> bool:
        """Whether it cannot go on before the KV of its first layers is here."""
        return self.late is not None and self.late.data is None and self.computed >= self.late.stop

    @property
    def decodes(self) -> bool:
        """Whether only the row of the last token is left, so that each step yields a token."""
        return self.computed >= self.prompt_tokens and self.computed == len(self.tokens) - 1

    def pieces(self, budget: int, cut: int = PREFILL_CHUNK) -> Iterator[ScheduledChunk]:
        """What may be computed next in at most `budget` rows: chunks of the prompt, the last one cut short at a
        multiple of `cut` rows, then generated positions."""
        return self._pieces_from(self.computed, budget, cut)

    def decode(self) -> ScheduledChunk:
        """The row of the last token, where only that is left."""
        return self._piece(self.computed, len(self.tokens), decode=True)

    def rest(self, most_rows: int) -> Iterator[ScheduledChunk]:
        """All that is not computed, in pieces of at most `most_rows` rows."""
        start = self.computed
        while start < len(self.tokens):
            for piece in self._pieces_from(start, most_rows, PREFILL_CHUNK):
                yield piece
                start = piece.stop

    def computed_from(self, start: int) -> Iterator[ScheduledChunk]:
        """What was computed from this position on, to be computed elsewhere: nothing is drawn."""
        while start < self.computed:
            decode = start >= self.prompt_tokens
            stop = min(start + PREFILL_CHUNK, self.computed if decode else min(self.computed, self.prompt_tokens))
            yield ScheduledChunk(self.request_id, tuple(self.tokens[start:stop]), start, self.blocks, decode)
            start = stop

    def reach(self, position: int) -> None:
        """All before `position` is computed."""
        self.computed = position
        if self.entry is not None and position >= self.entry.stop:
            self.entry = None

    def lay_down(self, block_tokens: int) -> KvImport | None:
        """What came late, to go into the cache now."""
        late = self.late
        if late is None or late.data is None:
            return None
        self.late = None
        count = -(-late.stop // block_tokens)
        return KvImport(self.request_id, self.blocks[:count], late.layers, late.data)

    def _pieces_from(self, start: int, budget: int, cut: int) -> Iterator[ScheduledChunk]:
        while start < self.prompt_tokens:
            rows = min(PREFILL_CHUNK - start % PREFILL_CHUNK, self.prompt_tokens - start)
            if rows > budget:
                rows = budget // cut * cut
            if rows <= 0:
                return
            yield self._piece(start, start + rows, decode=False)
            budget -= rows
            start += rows
        stop = min(start + budget, len(self.tokens))
        if start < stop:
            yield self._piece(start, stop, decode=True)

    def preempt(self) -> None:
        """The KV is gone; the tokens stay."""
        self.blocks, self.computed, self.preempted = range(0), 0, True
        self.entry = self.late = self.filled = self.prefix = None

    def go_on_from(self, filled: Filled) -> None:
        """What is computed is what is filled."""
        self.computed, self.filled = filled.stop, None

    def append(self, token: int) -> FinishReason | None:
        """Take a chosen token; why the request ends with it, or None."""
        self.tokens.append(token)
        if token in self.stops:
            return "stop"
        return "length" if self.generated == self.request.max_tokens else None

    def _piece(self, start: int, stop: int, *, decode: bool) -> ScheduledChunk:
        tokens = tuple(self.tokens[start:stop])
        draw = self._draw() if stop == len(self.tokens) else None
        return ScheduledChunk(self.request_id, tokens, start, self.blocks, decode, draw, self.entry)

    def _draw(self) -> TokenSampling:
        generated = self.generated
        forbidden = self.stops if generated < self.request.min_tokens else ()
        return TokenSampling(self.request.sampling, generated, forbidden, self.stops)


def order(sequence: Sequence) -> tuple[int, int]:
    """Its place in the line; of equal ones the earlier goes first."""
    return queue_position(sequence.arrival, sequence.request.priority), sequence.arrival
