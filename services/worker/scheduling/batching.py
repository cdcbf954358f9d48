"""Which rows run in the next step: decodes first, then prompts, which share what is left of the step's budget. Pure.

Short prompts do not wait for long ones, and no prompt waits for ever.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, PROMPT_CUT, ScheduledChunk
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.scheduling.rates import DecodePace
from livescale.services.worker.scheduling.sequence import Sequence, order

Scheduled = tuple[Sequence, ScheduledChunk]


@dataclass(frozen=True)
class RowBudget:
    """How many rows of prompts a step may run.

    A chunk that does not fit is cut short at a multiple of `cut` rows.
    """

    rows: int
    cut: int = PREFILL_CHUNK


def choose_chunks(
    ready: list[Sequence], requests: int, limits: SchedulerLimits, pace: DecodePace, under_way: int = 0
) -> Iterator[Scheduled]:
    """Choose the chunks of the next step among the sequences that are `ready`, of at most `requests` of them.

    `under_way` counts the decodes of a batch that is computed before this one. They come again after it and so wait for
    it, too.
    """
    decoding = [sequence for sequence in ready if sequence.decodes][:requests]
    prefilling = sorted((sequence for sequence in ready if not sequence.decodes), key=order)
    prefilling = prefilling[: requests - len(decoding)]
    for sequence in decoding:
        yield sequence, sequence.decode()
    budget = prompt_budget(len(decoding) or under_way, len(prefilling), limits, pace)
    yield from share_rows(prefilling, budget.rows, budget.cut)


def prompt_budget(decodes: int, prompts: int, limits: SchedulerLimits, pace: DecodePace) -> RowBudget:
    """The rows of prompts for a step with so many decodes and so many prompts.

    Decodes take at most `tbt_ratio` times as long with these rows as alone, as far as that is known. There are at least
    enough rows for both the first prompt in line and the one with least left to gain.
    """
    most = limits.max_num_batched_tokens - decodes
    if decodes and pace.is_stale:
        return RowBudget(0)
    rows = pace.prompt_rows(decodes, limits.tbt_ratio) if decodes else most
    if rows >= most:
        return RowBudget(most)
    return RowBudget(max(int(rows), PROMPT_CUT * min(2, prompts)), PROMPT_CUT)


def share_rows(prefilling: Iterable[Sequence], rows: int, cut: int = PREFILL_CHUNK) -> Iterator[Scheduled]:
    """Share `rows` among the sequences that are prefilling: at least a chunk, or two cuts where chunks are `cut` rows.

    The first in line gets a chunk, or half of the rows where there are few, so that it gains in every step. All other
    rows go by priority, then to the sequence with least left. So a short prompt waits for a chunk of a long one and not
    for all of it, and the average wait is as short as can be.
    """
    line = list(prefilling)
    first = min(line, key=order, default=None)
    reserved = 0 if first is None else min(PREFILL_CHUNK, first.left, max(cut, rows // 2))
    for sequence in sorted(line, key=_eagerness):
        if sequence is first:
            reserved = 0
        for chunk in sequence.chunks(rows - reserved, cut):
            rows -= len(chunk.tokens)
            yield sequence, chunk


def _eagerness(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.request.priority, sequence.left, sequence.arrival
