"""Which rows run in the next step: decodes first, then prompts, which share what is left of the step's budget. Pure.

Short prompts do not wait for long ones, and no prompt waits for ever.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass

from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, PROMPT_CUT, ScheduledChunk
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.scheduling.rates import DecodePace
from livescale.services.worker.scheduling.sequence import Sequence, order

Scheduled = tuple[Sequence, ScheduledChunk]


@dataclass(frozen=True)
class RowBudget:
    """Rows of a step, and at which rows a chunk may be cut short so that it fits."""

    rows: int
    cut: int = PREFILL_CHUNK


def choose_chunks(
    ready: List[Sequence], requests: int, limits: SchedulerLimits, pace: DecodePace, under_way: int = 0
) -> Iterator[Scheduled]:
    """Of those that may run, at most so many requests. `under_way`: decodes of a batch that is computed before this
    one: they come again after it, and so wait for it, too."""
    decoding = [sequence for sequence in ready if sequence.decodes][:requests]
    prefilling = sorted((sequence for sequence in ready if not sequence.decodes), key=order)
    prefilling = prefilling[: requests - len(decoding)]
    for sequence in decoding:
        yield sequence, sequence.decode()
    room = prompt_budget(len(decoding) or under_way, len(prefilling), limits, pace)
    yield from share_rows(prefilling, room.rows, room.cut)


def prompt_budget(decodes: int, prompts: int, limits: SchedulerLimits, pace: DecodePace) -> RowBudget:
    """For so many prompts beside so many decodes: as much as these take `tbt_ratio` times as long with as alone, as far
    as that is known, and no less than what lets both the first in the line gain and whoever has least left."""
    most = limits.max_num_batched_tokens - decodes
    if decodes and pace.is_stale:
        return RowBudget(0)
    rows = pace.prompt_rows(decodes, limits.tbt_ratio) if decodes else most
    if rows >= most:
        return RowBudget(most)
    return RowBudget(max(int(rows), PROMPT_CUT * min(2, prompts)), PROMPT_CUT)


def share_rows(
    prefilling: Iterable[Sequence], rows: int, cut: int = PREFILL_CHUNK
) -> Iterator[tuple[Sequence, ScheduledChunk]]:
    """What of these runs in a step of so many rows, at least a chunk, or of chunks that are `cut` two cuts.

    A chunk is for the first in the line, or half of few rows, so that it gains in every step. All other rows go by
    priority, then to whoever has least left: so a short prompt waits for a chunk of a long one and not for all of it,
    and on average they wait as little as can be.
    """
    line = list(prefilling)
    first = min(line, key=order, default=None)
    reserved = 0 if first is None else min(PREFILL_CHUNK, first.left, max(cut, rows // 2))
    for sequence in sorted(line, key=_eagerness):
        if sequence is first:
            reserved = 0
        for piece in sequence.pieces(rows - reserved, cut):
            rows -= len(piece.tokens)
            yield sequence, piece


def _eagerness(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.request.priority, sequence.left, sequence.arrival
