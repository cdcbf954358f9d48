"""Which rows run in the next step: decodes first, then prompts, which share what is left of the step's budget. Pure.

Short prompts do not wait for long ones, and no prompt waits for ever.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from livescale.services.worker.scheduling.allocation import BlockAllocation
from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, PROMPT_CUT, ScheduledChunk
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.scheduling.rates import DecodePace
from livescale.services.worker.scheduling.sequence import Sequence, order

Scheduled = tuple[Sequence, ScheduledChunk]


@dataclass(frozen=True)
class RowBudget:
    """How many rows of prompts a step may run: at most `rows`, and no more than take as long as `work` whole ones.

    Rows whose first layers have run already take less. A chunk that does not fit is cut short at a multiple of `cut`
    rows.
    """

    rows: int
    work: int
    cut: int = PREFILL_CHUNK


def choose_chunks(
    allocation: BlockAllocation, under_way: Mapping[int, list[Scheduled]], at_once: int, pace: DecodePace | None
) -> Iterator[Scheduled]:
    """Choose the chunks of the next step, of an even part of the requests where several batches run `at_once`.

    Where no prompt is left, and no batch is `under_way`, conversations are computed beside the decodes.
    """
    limits, running = allocation.limits, allocation.running.values()
    to_run = [one for one in running if not (one.held or one.awaits_mask or one.awaits_adapter or one.is_waiting)]
    ready = [one for one in to_run if not one.in_flight and allocation.has_room(one)]
    before = max((sum(chunk.decode for _, chunk in chosen) for chosen in under_way.values()), default=0)
    yield from choose_among(ready, -(-len(to_run) // at_once), limits, pace, before)
    decodes = sum(sequence.decodes for sequence in ready)
    if allocation.contexts is not None and decodes == len(ready) and not under_way:
        yield from allocation.contexts.fill(prompt_budget(decodes, 1, limits, pace).work)


def choose_among(
    ready: list[Sequence], requests: int, limits: SchedulerLimits, pace: DecodePace | None, under_way: int = 0
) -> Iterator[Scheduled]:
    """Choose chunks of the sequences that are `ready`, of at most `requests` of them.

    `under_way` counts the decodes of a batch that is computed before this one. They come again after it and so wait for
    it, too.
    """
    decoding = [sequence for sequence in ready if sequence.decodes][:requests]
    prefilling = sorted((sequence for sequence in ready if not sequence.decodes), key=order)
    prefilling = prefilling[: requests - len(decoding)]
    for sequence in decoding:
        yield sequence, sequence.decode()
    budget = prompt_budget(len(decoding) or under_way, len(prefilling), limits, pace)
    yield from share_rows(prefilling, budget)


def prompt_budget(decodes: int, prompts: int, limits: SchedulerLimits, pace: DecodePace | None) -> RowBudget:
    """The rows of prompts for a step with so many decodes and so many prompts.

    Decodes take at most as long with these rows as the limits allow, as far as that is known. There are at least enough
    rows for both the first prompt in line and the one with least left to gain. Without a pace nothing is limited.
    """
    most = limits.max_num_batched_tokens - decodes
    if not decodes or pace is None:
        return RowBudget(most, most)
    if pace.is_stale:
        return RowBudget(0, 0)
    work = pace.prompt_rows(decodes, limits)
    if work >= most:
        return RowBudget(most, most)
    return RowBudget(most, max(int(work), PROMPT_CUT * min(2, prompts)), PROMPT_CUT)


def share_rows(prefilling: Iterable[Sequence], budget: RowBudget) -> Iterator[Scheduled]:
    """Share the rows among the sequences that are prefilling: at least a chunk, or two cuts where chunks are cut short.

    The first in line gets a chunk, or half of the rows where there are few, so that it gains in every step. All other
    rows go by priority, then to the sequence with least left to compute. So a short prompt waits for a chunk of a long
    one and not for all of it, and the average wait is as short as can be.
    """
    line, rows, work = list(prefilling), budget.rows, float(budget.work)
    first = min(line, key=order, default=None)
    if first is None:
        return
    its_own = min(rows, PREFILL_CHUNK, first.left, max(budget.cut, _fitting(first, rows, work) // 2))
    if first.whole:
        its_own = first.left
    kept = its_own
    for sequence in sorted(line, key=_eagerness):
        if sequence is first:
            kept = 0
        most = _fitting(sequence, rows - kept, work - kept * _row_work(first))
        for chunk in sequence.chunks(max(most, its_own) if sequence is first else most, budget.cut):
            rows -= len(chunk.tokens)
            work -= chunk.work
            yield sequence, chunk


def _row_work(sequence: Sequence) -> float:
    """What each of its uncomputed rows takes, as a share of a row that runs through all layers."""
    return 1.0 if sequence.entry is None else sequence.entry.left


def _fitting(sequence: Sequence, rows: int, work: float) -> int:
    """How many of the sequence's rows are at most `rows` and `work`."""
    return int(min(rows, work / _row_work(sequence)))


def _eagerness(sequence: Sequence) -> tuple[int, float, int]:
    return sequence.request.priority, sequence.left * _row_work(sequence), sequence.arrival


def broken_flights(under_way: Mapping[int, list[Scheduled]], allocation: BlockAllocation) -> Iterator[str]:
    """Say what is wrong with the batches `under_way`, by step: a request in two of them, blocks that two write."""
    flights = [(step, one) for step, chosen in under_way.items() for one in dict(chosen)]
    for step, sequence in flights:
        if sequence.held:
            yield f"scheduler: {sequence.request_id} is run in step {step}, and is not to be"
    for (step, one), (later, other) in combinations(flights, 2):
        if one is other:
            yield f"scheduler: {one.request_id} is in steps {step} and {later}"
        was_ended = allocation.get(one.request_id) is not one
        if set(one.blocks) & set(other.blocks) and not (was_ended and step < later):
            yield f"scheduler: {one.request_id} and {other.request_id} write the same blocks"
