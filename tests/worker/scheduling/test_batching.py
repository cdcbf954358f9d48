"""Decodes first, then as many rows of prompts as do not hold the decodes up.

Among prompts the one with least left goes first, the first in the line always gains, and none waits for ever.
"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.worker.scheduling.allocation import BlockAllocation
from livescale.services.worker.scheduling.batch import Batch, Chosen
from livescale.services.worker.scheduling.batching import RowBudget, broken_flights, prompt_budget
from livescale.services.worker.scheduling.limits import SLO_SHARE
from livescale.services.worker.scheduling.rates import FIRST_ROWS, STEPS_BESIDE, DecodePace
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.scheduling.sequence import Sequence, order
from livescale.shared.messages.requests import PRIORITY_ARRIVALS, Submit
from tests.fuzz.effort import examples
from tests.worker.requests import limits, submit

ROW, DECODES = 0.001, 0.0265  # seconds of a row of a prompt, and of a step of decodes


def seconds(batch: Batch) -> float:
    return ROW * batch.prefill_rows + (DECODES if batch.decode_rows else 0.0)


def known(decodes: int = 4) -> DecodePace:
    pace = DecodePace()
    pace.observe(400, 0, 400 * ROW)
    pace.observe(0, decodes, DECODES)
    return pace


class Run:
    """A run of steps that take as long as `seconds` says."""

    def __init__(self, **fields: float) -> None:
        self.scheduler = Scheduler(limits(kv_blocks=2_000, **fields))
        self.pace = DecodePace()

    def add(self, id: str, prompt: int, more: int) -> None:
        self.scheduler.add(submit(id, [7] * prompt, max_tokens=more))

    def step(self) -> Batch:
        batch = self.scheduler.next_batch(pace=self.pace)
        assert batch is not None
        self.pace.observe(batch.prefill_rows, batch.decode_rows, seconds(batch))
        self.scheduler.complete(batch, Chosen([7] * len(batch.samplings)), 0.0)
        return batch

    def decodes(self, count: int) -> None:
        """Have so many requests decode from now on, with a known pace."""
        for number in range(count):
            self.add(f"decodes-{number}", 5, 500)
        self.step()
        assert self.step().decode_rows == count


def test_a_few_rows_go_with_decodes_of_which_nothing_is_known() -> None:
    assert prompt_budget(4, 1, limits(), DecodePace()) == RowBudget(508, work=FIRST_ROWS, cut=8)


def test_without_decodes_or_without_a_pace_nothing_is_limited() -> None:
    assert prompt_budget(0, 1, limits(), known()) == RowBudget(512, work=512)
    assert prompt_budget(4, 1, limits(), None) == RowBudget(508, work=508)


@pytest.mark.parametrize(("ratio", "rows"), [(2.0, 26), (3.0, 53), (1.0, 8), (1.1, 8)])
def test_beside_decodes_there_are_as_many_rows_as_double_their_time_and_never_none(ratio: float, rows: int) -> None:
    assert prompt_budget(4, 1, limits(tbt_ratio=ratio), known()) == RowBudget(508, work=rows, cut=8)


@pytest.mark.parametrize(("slo", "rows"), [(0.0370, 10), (0.1270, 100), (0.02, 8), (9.0, 508)])
def test_with_an_slo_there_are_as_many_rows_as_keep_a_step_within_it(slo: float, rows: int) -> None:
    assert prompt_budget(4, 1, limits(tbt_slo=slo / SLO_SHARE), known()).work == rows


def test_both_of_two_prompts_gain() -> None:
    run = Run(tbt_ratio=2.0)
    run.decodes(4)
    run.add("long", 1_000, 1)
    run.add("short", 100, 1)
    rows = Counter({chunk.request_id: len(chunk.tokens) for chunk in run.step().chunks if not chunk.decode})
    assert rows == {"long": 16, "short": 8}


def test_where_decodes_take_long_whole_chunks_go_with_them() -> None:
    pace = DecodePace()
    pace.observe(400, 0, 0.001)
    pace.observe(0, 4, DECODES)
    assert prompt_budget(4, 1, limits(), pace) == RowBudget(508, work=508)


def test_a_long_prompt_beside_decodes_holds_them_up_no_longer_than_allowed() -> None:
    run = Run()
    run.decodes(4)
    run.add("long", 1_000, 1)
    while "long" in run.scheduler:
        batch = run.step()
        assert batch.decode_rows == 4
        assert seconds(batch) <= 2 * DECODES


def test_now_and_then_decodes_are_seen_alone_and_what_they_take_is_learned_anew() -> None:
    run = Run()
    run.decodes(4)
    run.add("long", 2_000, 1)
    alone = [run.step().prefill_rows == 0 for _ in range(3 * (STEPS_BESIDE + 1))]
    assert alone == [*[False] * STEPS_BESIDE, True] * 3


def test_what_is_computed_of_contexts_holds_decodes_up_no_longer_either() -> None:
    run = Run(context_blocks=100)
    run.scheduler.keep_prefixes()
    run.decodes(4)
    run.scheduler.add(submit("talk", [7] * 300, max_tokens=200, context_id="talk"))
    while "talk" in run.scheduler:
        run.step()
    batches = [run.step() for _ in range(40)]
    computed = [chunk for batch in batches for chunk in batch.chunks if chunk.request_id == "talk"]
    assert (computed[0].start, computed[-1].stop) == (288, 496)  # whole blocks, after those of the prompt
    assert all(seconds(batch) <= 2 * DECODES and batch.decode_rows == 4 for batch in batches)


@examples(40)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 900), st.integers(1, 60)), min_size=1, max_size=12),
    st.sampled_from([1.0, 2.0, 5.0]),
)
def test_all_come_to_their_end_in_any_mix(arrivals: list[tuple[int, int, int]], ratio: float) -> None:
    run = Run(tbt_ratio=ratio, max_num_seqs=8)
    arrivals = sorted(arrivals)
    steps = 0
    while arrivals or not run.scheduler.is_empty:
        while arrivals and (arrivals[0][0] <= steps or run.scheduler.is_empty):
            run.add(str(len(arrivals)), *arrivals.pop(0)[1:])
        batch = run.step()
        assert batch.prefill_rows + batch.decode_rows <= 512
        steps += 1


def test_a_batch_of_prompts_holds_up_the_decodes_of_those_under_way_no_longer_than_one_with_decodes() -> None:
    run = Run(max_num_seqs=8)
    run.decodes(2)
    for number in range(2):
        run.add(f"prompt-{number}", 400, 5)
    decodes, prompts = (run.scheduler.next_batch(2, known(2)) for _ in range(2))
    assert decodes is not None
    assert prompts is not None
    assert (decodes.decode_rows, decodes.prefill_rows, prompts.decode_rows) == (2, 0, 0)
    assert prompts.prefill_rows * ROW <= 0.8 * DECODES
    run.scheduler.complete(decodes, Chosen([7, 7]), 0.0)
    run.scheduler.complete(prompts, Chosen([]), 0.0)


def begun(*requests: Submit, **fields: Any) -> Scheduler:
    scheduler = Scheduler(limits(kv_blocks=2_000, **fields))
    for request in requests:
        scheduler.add(request)
    return scheduler


def step(scheduler: Scheduler) -> Batch:
    batch = scheduler.next_batch()
    assert batch is not None
    scheduler.complete(batch, Chosen([7] * len(batch.samplings)), 0.0)
    return batch


def rows(batch: Batch) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for chunk in batch.chunks:
        counted[chunk.request_id] += len(chunk.tokens)
    return dict(counted)


def test_a_short_prompt_runs_beside_a_long_one_that_came_before_it() -> None:
    scheduler = begun(submit("long", range(2_000)), submit("short", range(100)))
    batch = step(scheduler)
    assert rows(batch) == {"short": 100, "long": 384}
    assert [chunk.sampling is not None for chunk in batch.chunks if chunk.request_id == "short"] == [True]


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


def test_rows_that_are_left_go_to_the_lower_priority_first() -> None:
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


def sequence(id: str, blocks: range) -> Sequence:
    made = Sequence(submit(id), 0)
    made.blocks = blocks
    return made


def broken(running: list[Sequence], *batches: list[Sequence]) -> list[str]:
    allocation = BlockAllocation(limits())
    allocation.running = {one.request_id: one for one in running}
    under_way = {
        step: [(one, chunk) for one in batch for chunk in one.chunks(100)] for step, batch in enumerate(batches)
    }
    return list(broken_flights(under_way, allocation))


A, B = sequence("a", range(2)), sequence("b", range(2, 4))


def test_requests_with_blocks_of_their_own_may_be_under_way_together() -> None:
    assert broken([A, B], [A], [B]) == []
    assert broken([A, B], [A, B]) == []


def test_a_request_is_in_one_batch_at_a_time() -> None:
    assert broken([A], [A], [A]) == [
        "scheduler: a is in steps 0 and 1",
        "scheduler: a and a write the same blocks",
    ]


def test_two_that_run_never_write_the_same_blocks() -> None:
    other = sequence("c", range(1, 3))
    assert broken([A, other], [A], [other]) == ["scheduler: a and c write the same blocks"]


def test_blocks_of_a_request_that_has_ended_may_be_written_in_a_later_step() -> None:
    heir = sequence("c", range(2))
    assert broken([heir], [A], [heir]) == []
    assert broken([heir], [A, heir]) == ["scheduler: a and c write the same blocks"]


def test_a_request_that_is_held_is_in_no_batch() -> None:
    held = sequence("c", range(4, 6))
    held.held = True
    assert broken([held], [held]) == ["scheduler: c is run in step 0, and is not to be"]
