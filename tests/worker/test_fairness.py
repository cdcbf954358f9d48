"""Prompts share a step: who has least left goes first, the first in the line always gains, nobody waits for ever."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.worker.batch import Batch
from livescale.services.worker.fairness import order
from livescale.services.worker.scheduler import Scheduler
from livescale.services.worker.sequence import Sequence
from livescale.shared.messages.requests import Submit
from livescale.shared.policy.priority_queue import PRIORITY_ARRIVALS
from tests.fuzz.effort import examples
from tests.worker.serving import limits, submit


def begun(*requests: Submit, **fields: Any) -> Scheduler:
    scheduler = Scheduler(limits(kv_blocks=2_000, **fields))
    for request in requests:
        scheduler.add(request)
    return scheduler


def step(scheduler: Scheduler) -> Batch:
    batch = scheduler.next_batch()
    assert batch is not None
    scheduler.complete(batch, [7] * len(batch.draws), 0.0)
    return batch


def rows(batch: Batch) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for piece in batch.pieces:
        counted[piece.request_id] += len(piece.tokens)
    return dict(counted)


def test_a_short_prompt_runs_beside_a_long_one_that_came_before_it() -> None:
    scheduler = begun(submit("long", range(2_000)), submit("short", range(100)))
    batch = step(scheduler)
    assert rows(batch) == {"short": 100, "long": 384}
    assert [piece.draw is not None for piece in batch.pieces if piece.request_id == "short"] == [True]


def test_short_prompts_do_not_wait_for_all_the_long_ones_before_them() -> None:
    longs = [submit(f"long-{number}", range(2_000)) for number in range(6)]
    assert rows(step(begun(*longs, submit("short", range(100))))) == {"short": 100, "long-0": 384}


def test_the_first_in_the_line_has_a_chunk_in_every_step_whatever_short_ones_come() -> None:
    scheduler = begun(submit("long", range(1_280), max_tokens=1))
    for number in range(10):
        for more in range(4):
            scheduler.add(submit(f"short-{number}-{more}", range(120), max_tokens=1))
        assert rows(step(scheduler))["long"] == 128
    assert "long" not in scheduler


def test_of_what_is_left_the_lower_priority_goes_first() -> None:
    scheduler = begun(
        submit("first", range(500)), submit("low", range(50), priority=1), submit("normal", range(380)), submit("n2")
    )
    assert rows(step(scheduler)) == {"n2": 3, "normal": 380, "first": 128}


@pytest.mark.parametrize(("later", "overtakes"), [(1, True), (PRIORITY_ARRIVALS - 1, True), (PRIORITY_ARRIVALS, False)])
def test_a_lower_priority_overtakes_so_many_places_and_no_more(later: int, *, overtakes: bool) -> None:
    waits = Sequence(submit("waits", priority=3), arrival=10)
    comes = Sequence(submit("comes", priority=2), arrival=10 + later)
    assert (order(comes) < order(waits)) is overtakes


ARRIVALS = st.lists(
    st.lists(st.tuples(st.integers(1, 1_500), st.integers(-2, 2), st.integers(1, 5)), max_size=4),
    min_size=1,
    max_size=12,
)


@examples(60)
@given(ARRIVALS, st.integers(1, 8), st.integers(144, 512))
def test_the_first_in_the_line_gains_in_every_step_so_nobody_waits_for_ever(
    arrivals: list[list[tuple[int, int, int]]], seqs: int, most_rows: int
) -> None:
    scheduler = begun(max_num_seqs=seqs, max_num_batched_tokens=most_rows)
    work = added = 0
    while arrivals or not scheduler.is_empty:
        for prompt, priority, more in arrivals.pop(0) if arrivals else ():
            scheduler.add(submit(str(added), [7] * prompt, priority=priority, max_tokens=more))
            added += 1
            work += prompt + more - 1
        scheduler.start()
        here = [one for id in map(str, range(added)) if (one := scheduler.get(id)) is not None and one.blocks]
        if not here:
            continue
        first = min(here, key=order).request_id
        batch = step(scheduler)
        assert first in rows(batch), "who is the first of those that run gains"
        assert batch.prefill_rows + batch.decode_rows <= most_rows
        work -= batch.prefill_rows + batch.decode_rows
    assert work == 0
