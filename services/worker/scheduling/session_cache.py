"""Contexts: prompts with their answers, kept by the ids that clients gave them (DeepServe 4.1). Pure.

A conversation's next prompt begins with the prompt before it and its answer. The answer's KV is of no use to it as it
is: its tokens attended one by one, and as a part of a prompt they would not. So it is computed again as that prompt
would compute it: a chunk at a time, in steps that have no other prompt, in blocks that nobody owns, as far as it fills
blocks.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from livescale.services.worker.scheduling.batch import PROMPT_CUT, ScheduledChunk
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.scheduling.prefix_cache import PrefixCache
from livescale.services.worker.scheduling.sequence import Sequence

MOST_TO_FILL = 64  # contexts of which something is to be computed: of more than these, the first is left as it is


@dataclass(frozen=True, eq=False)
class Session:
    """A prompt and its answer, all as one prompt, to be kept until then."""

    sequence: Sequence
    until: float


class SessionCache:
    """By id, for `context_seconds` since the last answer, in at most `context_blocks`."""

    def __init__(self, cache: PrefixCache, limits: SchedulerLimits) -> None:
        self._cache = cache
        self._limits = limits
        self._now = 0.0
        self._to_fill: OrderedDict[str, Session] = OrderedDict()

    def begin(self, context_id: str | None) -> None:
        """A conversation's next request is here, and computes itself what is not computed of the context."""
        context = None if context_id is None else self._to_fill.pop(context_id, None)
        if context is not None and context.sequence.blocks:
            self._cache.take_back()

    def end(self, sequence: Sequence) -> None:
        """A request is over; what was computed of it is kept, and its last token."""
        request = sequence.request
        if request.context_id is None or not self._limits.context_blocks:
            return
        prompt = sequence.tokens[: sequence.computed + 1]
        whole = Sequence(replace(request, prompt=prompt, generated=[]), sequence.arrival)
        context = Session(whole, self._now + self._limits.context_seconds)
        self.begin(request.context_id)
        if not self._is_kept(context):
            self._to_fill[request.context_id] = context
        if len(self._to_fill) > MOST_TO_FILL:
            self.begin(next(iter(self._to_fill)))

    def expire(self, now: float) -> None:
        """Contexts whose time is up stay no longer than what nobody named."""
        self._now = now
        self._cache.expire(now)
        while self._to_fill and next(iter(self._to_fill.values())).until <= now:
            self.begin(next(iter(self._to_fill)))

    def fill(self, rows: int) -> Iterator[tuple[Sequence, ScheduledChunk]]:
        """The next chunk to be computed, in at most so many rows. Of one context after the other: of the one that is
        begun, or else the first that there are blocks for."""
        if rows < PROMPT_CUT:
            return
        for context_id, context in sorted(self._to_fill.items(), key=lambda one: not one[1].sequence.blocks):
            sequence = context.sequence
            if not sequence.blocks and not self._lend(sequence):
                continue
            left = self._cache.keepable(sequence) - sequence.computed
            if left:
                yield sequence, next(sequence.pieces(min(rows, left), PROMPT_CUT))
                return
            self._is_kept(context)  # somebody else has computed it meanwhile
            self.begin(context_id)

    def filled(self, sequence: Sequence, piece: ScheduledChunk) -> None:
        """A step has computed this; nothing where that is of no context any more."""
        context_id = sequence.request.context_id
        context = None if context_id is None else self._to_fill.get(context_id)
        if context is None or context.sequence is not sequence or not sequence.blocks:
            return
        sequence.reach(piece.stop)
        self._cache.keep(sequence)
        if self._is_kept(context) or sequence.prefix is None:  # or there is no room for more
            self.begin(context_id)

    def clear(self) -> None:
        """Nothing that was computed is of use any more."""
        self._to_fill.clear()
        self._cache.clear()

    def _lend(self, sequence: Sequence) -> bool:
        return self._cache.lend(sequence, self._limits.blocks(len(sequence.tokens)))

    def _is_kept(self, context: Session) -> bool:
        return self._cache.name(context.sequence, context.until, self._limits.context_blocks)
