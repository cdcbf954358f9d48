"""The session cache: conversations, that is prompts with their answers, kept by their context ids (DeepServe 4.1).
Pure.

A conversation's next prompt begins with the prompt before it and its answer. The answer's KV is of no use to it as it
is: its tokens attended one by one, and as a part of a prompt they would not. So the answer is computed again as that
prompt would compute it: a chunk at a time, in steps that have no other prompt, in blocks without an owner, as far as it
fills blocks.
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
    """A prompt and its answer together as one prompt, kept until the time `until`."""

    sequence: Sequence
    until: float


class SessionCache:
    """Conversations by context id, kept for `context_seconds` since the last answer, in at most `context_blocks`
    blocks."""

    def __init__(self, cache: PrefixCache, limits: SchedulerLimits) -> None:
        self._cache = cache
        self._limits = limits
        self._now = 0.0
        self._to_fill: OrderedDict[str, Session] = OrderedDict()

    def begin(self, context_id: str | None) -> None:
        """Stop computing a conversation: its next request is here and computes what is missing."""
        context = None if context_id is None else self._to_fill.pop(context_id, None)
        if context is not None and context.sequence.blocks:
            self._cache.take_back()

    def end(self, sequence: Sequence) -> None:
        """Keep a request that ended: what was computed of it, and its last token."""
        request = sequence.request
        if request.context_id is None or not self._limits.context_blocks:
            return
        prompt = sequence.tokens[: sequence.computed + 1]
        asked = replace(request, prompt=prompt, generated=[], logprobs=[], prompt_logprobs=None)
        whole = Sequence(asked, sequence.arrival)
        context = Session(whole, self._now + self._limits.context_seconds)
        self.begin(request.context_id)
        if not self._is_kept(context):
            self._to_fill[request.context_id] = context
        if len(self._to_fill) > MOST_TO_FILL:
            self.begin(next(iter(self._to_fill)))

    def lose_adapter(self, version: str) -> None:
        """Leave conversations that use this adapter as they are: it has gone, and steps would wait for it."""
        for context_id in [id for id, context in self._to_fill.items() if context.sequence.adapter == version]:
            self.begin(context_id)

    def expire(self, now: float) -> None:
        """Treat conversations whose time is up like any other prompt. `now` is in seconds since the epoch."""
        self._now = now
        self._cache.expire(now)
        while self._to_fill and next(iter(self._to_fill.values())).until <= now:
            self.begin(next(iter(self._to_fill)))

    def fill(self, rows: int) -> Iterator[tuple[Sequence, ScheduledChunk]]:
        """Yield the next chunk to compute, of at most `rows` rows, or nothing.

        Conversations take turns one after the other: the one that is begun, or else the first that there are blocks
        for.
        """
        if rows < PROMPT_CUT:
            return
        for context_id, context in sorted(self._to_fill.items(), key=lambda one: not one[1].sequence.blocks):
            sequence = context.sequence
            if not sequence.blocks and not self._lend(sequence):
                continue
            left = self._cache.keepable(sequence) - sequence.computed
            if left:
                yield sequence, next(sequence.chunks(min(rows, left), PROMPT_CUT))
                return
            self._is_kept(context)  # another request has computed it meanwhile
            self.begin(context_id)

    def filled(self, sequence: Sequence, chunk: ScheduledChunk) -> None:
        """Note that a step has computed `chunk`, if it belongs to a conversation that is still to be filled."""
        context_id = sequence.request.context_id
        context = None if context_id is None else self._to_fill.get(context_id)
        if context is None or context.sequence is not sequence or not sequence.blocks:
            return
        sequence.reach(chunk.stop)
        self._cache.keep(sequence)
        if self._is_kept(context) or sequence.prefix is None:  # or there is no room for more
            self.begin(context_id)

    def clear(self) -> None:
        """Forget everything: nothing that was computed can be used any more."""
        self._to_fill.clear()
        self._cache.clear()

    def _lend(self, sequence: Sequence) -> bool:
        return self._cache.lend(sequence, self._limits.blocks(len(sequence.tokens)))

    def _is_kept(self, context: Session) -> bool:
        return self._cache.name(context.sequence, context.until, self._limits.context_blocks)
