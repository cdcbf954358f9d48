"""A request as the scheduler sees it: which of its positions are computed, which come next, how it ends. Pure."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from livescale.services.worker.kv.radix_tree import RadixNode
from livescale.services.worker.scheduling.batch import (
    PREFILL_CHUNK,
    KvImport,
    LayerEntry,
    Past,
    ScheduledChunk,
    Scoring,
    TokenOutput,
    TokenSampling,
)
from livescale.shared.messages.disaggregation import TakeOver
from livescale.shared.messages.requests import FinishReason, Submit, TokenLogprobs, Tokens, queue_position


@dataclass(eq=False)
class LateKv:
    """KV of the first `layers` layers for the positions before `stop`, which is on its way here from another worker.

    `data` is None until it arrives.
    """

    layers: int
    stop: int
    data: memoryview | None = None


@dataclass(eq=False)
class Filled:
    """KV of all layers that is computed here while a pipeline still runs the request.

    It lies in the blocks from `first_block` on. Positions before `stop` are there; those before `begun` are there when
    the steps under way end.
    """

    first_block: int
    stop: int = 0
    begun: int = 0


CARRIED_LOGPROBS = 512  # to another worker: those that a gateway may not have received
NOTHING = Filled(0)  # never written to


class Sequence:
    """A request's tokens, prompt and generated. The KV of the first `computed` of them is in the cache.

    `entry` says at which layer rows enter whose first layers have run before. `late` is KV of such layers that is not
    in the cache yet; nothing is decoded before it is. A `held` sequence belongs to another component, and no step runs
    it. One that `awaits_take_over` is to be decoded elsewhere, and no step runs it here after its first token, unless
    it `decodes_meanwhile`. One that is `in_flight` is in a step now. `logprobs` are those of the last of its tokens,
    `prompt_logprobs` of those of the prompt from the second on, where the request asks for them. `filled` is a second
    place of its KV. `prefix` is the last segment of the prompt that the prefix cache keeps, or None where it may keep
    no more. `cached` counts the tokens of the prompt that were in the cache when the sequence began. One that
    `awaits_mask` is run once it is known which tokens its grammar permits, one that `awaits_adapter` once that is here.
    The rows of a `whole` one see each other, and are never run in parts.
    """

    def __init__(self, request: Submit, arrival: int, whole: bool = False) -> None:
        self.request = request
        self.arrival = arrival
        self.whole = whole
        self.prompt_tokens = len(request.prompt)
        self.stops = tuple(request.stop_token_ids)
        self.adapter = None if request.adapter is None else request.adapter.version
        self.tokens = [*request.prompt, *request.generated]
        self.logprobs = list(request.logprobs)
        asked = request.prompt_logprobs
        self.prompt_logprobs = [] if asked is None else list(asked.told)
        self._needs_past = request.sampling.needs_past
        self.blocks = range(0)
        self.computed = 0
        self.preempted = False  # ever
        self.entry: LayerEntry | None = None
        self.late: LateKv | None = None
        self.filled: Filled | None = None
        self.prefix: RadixNode | None = None
        self.cached = 0
        self.held = False
        self.awaits_take_over = self.decodes_meanwhile = False
        self.in_flight = False
        self.awaits_mask = False
        self.awaits_adapter = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def generated(self) -> int:
        """The number of generated tokens, those before a resumption included."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def has_sampled(self) -> bool:
        """Whether a token was generated since the request came here."""
        return self.generated > len(self.request.generated)

    @property
    def present(self) -> int:
        """The number of positions whose KV is in the cache, that of all layers."""
        return self.computed if self.late is None else 0

    @property
    def waiting_tokens(self) -> int:
        """The number of prompt tokens that are not prefilled yet."""
        return max(self.prompt_tokens - self.computed, 0)

    @property
    def left(self) -> int:
        """The number of tokens, prompt and generated, that are not computed."""
        return len(self.tokens) - self.computed

    @property
    def layers_done(self) -> int:
        """The number of layers that all uncomputed positions have passed already."""
        return 0 if self.entry is None else self.entry.layer

    @property
    def is_waiting(self) -> bool:
        """Whether the sequence has to wait, for the KV of its first layers or for the worker that decodes it."""
        if self.awaits_take_over and self.has_sampled and not self.decodes_meanwhile:
            return True
        return self.late is not None and self.late.data is None and self.computed >= self.late.stop

    @property
    def decodes(self) -> bool:
        """Whether only the row of the last token is left, so that each step yields a token."""
        return self.computed >= self.prompt_tokens and self.computed == len(self.tokens) - 1

    def chunks(self, budget: int, cut: int = PREFILL_CHUNK) -> Iterator[ScheduledChunk]:
        """Yield what may be computed next in at most `budget` rows: chunks of the prompt, then generated positions.

        Where the budget ends within the prompt, the last chunk is cut short at a multiple of `cut` rows.
        """
        return self._chunks_from(self.computed, budget, cut)

    def decode(self) -> ScheduledChunk:
        """The chunk of the last token's row, for a sequence that `decodes`."""
        return self._chunk(self.computed, len(self.tokens), decode=True)

    def rest(self, most_rows: int) -> Iterator[ScheduledChunk]:
        """Yield everything that is not computed, in chunks of at most `most_rows` rows."""
        start = self.computed
        while start < len(self.tokens):
            for chunk in self._chunks_from(start, most_rows, PREFILL_CHUNK):
                yield chunk
                start = chunk.stop

    def reach(self, position: int) -> None:
        """Note that all positions before `position` are computed."""
        self.computed = position
        if self.entry is not None and position >= self.entry.stop:
            self.entry = None

    def lay_down(self, block_tokens: int) -> KvImport | None:
        """Take the late KV that has arrived, as an import into the cache before the next step. None where there is
        none."""
        late = self.late
        if late is None or late.data is None:
            return None
        self.late = None
        count = -(-late.stop // block_tokens)
        return KvImport(self.request_id, self.blocks[:count], late.layers, late.data)

    def _chunks_from(self, start: int, budget: int, cut: int) -> Iterator[ScheduledChunk]:
        if self.whole:
            if self.prompt_tokens <= budget:
                yield self._chunk(0, self.prompt_tokens, decode=False)
            return
        while start < self.prompt_tokens:
            rows = min(PREFILL_CHUNK - start % PREFILL_CHUNK, self.prompt_tokens - start)
            if rows > budget:
                rows = budget // cut * cut
            if rows <= 0:
                return
            yield self._chunk(start, start + rows, decode=False)
            budget -= rows
            start += rows
        stop = min(start + budget, len(self.tokens))
        if start < stop:
            yield self._chunk(start, stop, decode=True)

    def preempt(self) -> None:
        """Forget what was computed: the KV blocks are gone, the tokens stay."""
        self.blocks, self.computed, self.preempted = range(0), 0, True
        self.entry = self.late = self.filled = self.prefix = None
        self.awaits_take_over = self.decodes_meanwhile = False

    def go_on_from(self, filled: Filled) -> None:
        """Count the positions that are `filled` as computed, and no longer as filled."""
        self.computed, self.filled = filled.stop, None

    def take_over(self, command: TakeOver) -> None:
        """Go on after the command's tokens, all that were generated. The KV of the request's own ones is here; that of
        those which were generated while it moved is computed again."""
        self.computed = len(self.tokens)
        self.tokens = [*self.request.prompt, *command.generated]
        self.logprobs, self.prompt_logprobs = list(command.logprobs), list(command.prompt_logprobs)

    def append(self, token: int, logprobs: TokenLogprobs | None = None) -> FinishReason | None:
        """Append a sampled token. Returns why the request ends with it, or None."""
        self.tokens.append(token)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        if token in self.stops:
            return "stop"
        return "length" if self.generated == self.request.max_tokens else None

    def output(
        self,
        tokens: list[int],
        finish_reason: FinishReason | None = None,
        error: str | None = None,
        code: int | None = None,
    ) -> TokenOutput:
        """Make the row of the last tokens, which are `tokens`."""
        index = self.generated - len(tokens)
        row = Tokens(
            request_id=self.request_id,
            index=index,
            token_ids=tokens,
            logprobs=self.logprobs[-len(tokens) :] if tokens and self.logprobs else [],
            prompt_logprobs=[] if index or not tokens else self.prompt_logprobs,
            finish_reason=finish_reason,
            error=error,
            code=code,
            cached_tokens=self.cached,
        )
        return TokenOutput(self.request.gateway, row)

    def _chunk(self, start: int, stop: int, *, decode: bool) -> ScheduledChunk:
        tokens = tuple(self.tokens[start:stop])
        sampling = self._sampling() if stop == len(self.tokens) else None
        scoring = None if decode else self._scoring(start, stop)
        return ScheduledChunk(
            self.request_id,
            tokens,
            start,
            self.blocks,
            decode,
            sampling,
            self.entry,
            scoring,
            self.whole,
            self.adapter,
            self.request.pixels,
        )

    def _scoring(self, start: int, stop: int) -> Scoring | None:
        asked = self.request.prompt_logprobs
        if asked is None or self.generated:  # all of them came with the first token
            return None
        following = tuple(self.request.prompt[start + 1 : stop + 1])
        return Scoring(following, asked.top) if following else None

    def scored(self, start: int, told: Collection[TokenLogprobs]) -> None:
        """Note how likely the tokens of the prompt after position `start` are, where it is told."""
        if told:
            self.prompt_logprobs[start:] = told

    def as_request(self) -> Submit:
        """The request as another worker goes on with it: with what was generated, and what is told of its tokens."""
        asked = self.request.prompt_logprobs
        return replace(
            self.request,
            generated=self.tokens[self.prompt_tokens :],
            logprobs=self.logprobs[-CARRIED_LOGPROBS:],
            prompt_logprobs=None if asked is None else replace(asked, told=self.prompt_logprobs),
        )

    def _sampling(self) -> TokenSampling:
        generated = self.generated
        forbidden = self.stops if generated < self.request.min_tokens else ()
        past = self._past() if self._needs_past else None
        return TokenSampling(self.request.sampling, generated, forbidden, self.stops, past)

    def _past(self) -> Past:
        sampling = self.request.sampling
        prompt = self._prompt_once if sampling.repetition_penalty != 1.0 else ()
        return Past(prompt, tuple(self.tokens[self.prompt_tokens :]))

    @cached_property
    def _prompt_once(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.request.prompt)))


def order(sequence: Sequence) -> tuple[int, int]:
    """The sequence's place in line; between equal places the earlier arrival goes first."""
    return queue_position(sequence.arrival, sequence.request.priority), sequence.arrival
