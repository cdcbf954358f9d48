"""A full KV cache: which request gives way, and that every request ends all the same."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livescale.services.worker.kv.block_manager import GROWTH
from livescale.services.worker.scheduling.batch import Batch, Chosen, TokenOutput
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.messages.requests import Submit
from tests.worker.requests import BLOCK_TOKENS, limits, submit

BLOCKS = 40
TOKENS = BLOCKS * BLOCK_TOKENS


class Run:
    """A scheduler driven step by step; each request's tokens are counted up, so that a wrong one is seen."""

    def __init__(self, *requests: Submit, **fields: Any) -> None:
        self.scheduler = Scheduler(limits(**{"kv_blocks": BLOCKS, **fields}))
        self.requests: dict[str, Submit] = {}
        self.got: Counter[str] = Counter()
        self.ended: dict[str, str] = {}
        self.preempted: Counter[str] = Counter()
        self.computed: dict[str, int] = {}
        self.steps = 0
        for request in requests:
            self.add(request)

    def add(self, request: Submit) -> None:
        self.scheduler.add(request)
        self.requests[request.request_id] = request
        self.got[request.request_id] = len(request.generated)

    def step(self, now: float = 0.0) -> Batch:
        batch = self.scheduler.next_batch()
        assert batch is not None
        self.steps += 1
        self.scheduler.check_invariants()
        for request_id in batch.preempted:
            self.preempted[request_id] += 1
            self.computed[request_id] = 0
        for chunk in batch.chunks:
            prompt = len(self.requests[chunk.request_id].prompt)
            assert chunk.start == self.computed.get(chunk.request_id, 0), "each position once, and in order"
            assert chunk.decode == (chunk.start >= prompt), "a prompt in chunks, whatever follows row by row"
            known = (*self.requests[chunk.request_id].prompt, *range(self.got[chunk.request_id]))
            assert chunk.tokens == known[chunk.start : chunk.stop]
            self.computed[chunk.request_id] = chunk.stop
        drawing = [chunk.request_id for chunk in batch.chunks if chunk.sampling is not None]
        self.take(self.scheduler.complete(batch, Chosen([self.got[id] for id in drawing]), now))
        self.scheduler.check_invariants()
        return batch

    def take(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            row = output.row
            assert row.index == self.got[row.request_id], "no token twice, none left out"
            self.got[row.request_id] += len(row.token_ids)
            if row.finish_reason is not None:
                assert row.request_id not in self.ended
                self.ended[row.request_id] = row.finish_reason

    def cancel(self, request_id: str) -> None:
        output = self.scheduler.cancel(request_id)
        self.take([] if output is None else [output])
        self.scheduler.check_invariants()

    def until_preempted(self, request_id: str) -> Batch:
        while request_id not in (batch := self.step()).preempted:
            pass
        return batch

    def to_the_end(self) -> None:
        while self.scheduler.load().running_requests + self.scheduler.load().waiting_requests:
            self.step()


def ids(batch: Batch) -> list[str]:
    return sorted({chunk.request_id for chunk in batch.chunks})


def endless(request_id: str, prompt: int = 100, **fields: Any) -> Submit:
    """A request that may take the whole cache."""
    return submit(request_id, [7] * prompt, max_tokens=TOKENS - prompt, **fields)


def test_requests_that_may_take_the_whole_cache_run_side_by_side() -> None:
    run = Run(*(endless(str(number)) for number in range(3)))
    assert ids(run.step()) == ["0", "1", "2"]
    assert run.scheduler.load().kv_blocks_used == 3 * 7


def test_where_two_meet_the_last_that_arrived_gives_way_and_is_computed_again() -> None:
    run = Run(endless("first"), endless("last"))
    batch = run.until_preempted("last")
    assert ids(batch) == ["first"]
    load = run.scheduler.load()
    assert (load.running_requests, load.waiting_requests, load.kv_full) == (1, 1, True)
    run.cancel("first")
    assert [(chunk.start, chunk.stop, chunk.decode) for chunk in run.step().chunks][:2] == [
        (0, 100, False),
        (100, run.got["last"] + 99, True),
    ]


def test_when_two_requests_meet_the_lower_priority_gives_way_whichever_arrived_first() -> None:
    run = Run(endless("low", priority=1))
    run.step()
    run.add(endless("high"))
    assert ids(run.until_preempted("low")) == ["high"]


def test_a_preempted_request_starts_before_those_that_never_did() -> None:
    run = Run(endless("first"), endless("second"))
    run.step()
    run.add(endless("third", prompt=300))
    run.until_preempted("second")
    assert "third" not in run.computed
    run.cancel("first")
    assert "second" in ids(run.step())


def test_the_first_in_order_has_room_made_for_it_where_the_cache_ends() -> None:
    run = Run(endless("gone"), endless("first"))
    run.step()
    run.cancel("gone")
    run.step()
    run.add(endless("later"))
    while not run.preempted["first"]:
        batch = run.step()
        assert "first" in ids(batch)
    assert batch.preempted == ("first", "later")
    run.to_the_end()
    assert run.preempted["first"] == 1
    assert run.ended == {"gone": "cancelled", "first": "length", "later": "length"}


def test_no_request_is_preempted_for_one_that_never_ran() -> None:
    run = Run(submit("low", [7] * 500, max_tokens=100, priority=1))
    run.step()
    run.add(submit("high", [7] * 300, max_tokens=10))
    assert ids(run.step()) == ["low"]
    assert run.scheduler.load().kv_full
    run.to_the_end()
    assert not run.preempted


def test_without_pressure_nobody_is_preempted() -> None:
    run = Run(*(submit(str(number), [7] * 100, max_tokens=28) for number in range(5)))
    run.to_the_end()
    assert not run.preempted


def test_a_preempted_request_is_cancelled_like_any_other() -> None:
    run = Run(endless("first"), endless("last"))
    run.until_preempted("last")
    run.cancel("last")
    assert run.ended == {"last": "cancelled"}
    assert not run.scheduler.load().kv_full
    run.to_the_end()
    assert run.ended["first"] == "length"


def test_a_preempted_request_ends_at_its_deadline() -> None:
    run = Run(endless("first"), endless("last", deadline=9.0))
    run.until_preempted("last")
    run.step(now=9.0)
    assert run.ended == {"last": "deadline"}


def test_what_is_left_to_prefill_counts_the_prompts_of_the_preempted() -> None:
    run = Run(endless("first"), endless("last"))
    run.until_preempted("last")
    assert run.scheduler.load().waiting_tokens == 100


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 400),  # prompt
        st.integers(0, 40),  # generated elsewhere
        st.integers(1, TOKENS),  # at most so many more
        st.integers(1, 120),  # it ends after so many
        st.integers(0, 30),  # it comes so many steps after the one before
    ),
    min_size=2,
    max_size=12,
)


def made(number: int, prompt: int, generated: int, more: int, stop_after: int, priority: int = 0) -> Submit:
    most = TOKENS - prompt - generated
    return submit(
        str(number),
        [1_000] * prompt,
        generated=list(range(generated)),
        max_tokens=generated + min(more, most),
        stop_token_ids=[generated + stop_after],
        priority=priority,
    )


def most_steps(request: Submit, rows: int) -> int:
    """The most steps of a request that is the first in order: it advances in every step, and is placed again only after
    it has grown by a part of what it had."""
    total = len(request.prompt) + request.max_tokens
    size, placed = BLOCK_TOKENS, 1
    while size < total:
        size, placed = size * (GROWTH + 1) // GROWTH, placed + 1
    least = rows - 16  # rows that other requests' decodes leave
    return request.max_tokens + placed * (total // min(128, least) + 2)


@settings(max_examples=40)
@given(REQUESTS, st.integers(2, 6), st.integers(144, 400))
def test_the_first_in_order_gains_in_every_step_so_everybody_ends(
    asked: list[tuple[int, int, int, int, int]], seqs: int, rows: int
) -> None:
    run = Run(max_num_seqs=seqs, max_num_batched_tokens=rows)
    pending = [(made(number, *fields[:4]), fields[4]) for number, fields in enumerate(asked)]
    bound = sum(most_steps(request, rows) + wait for request, wait in pending)
    due = 0
    while pending or len(run.ended) < len(run.requests):
        while pending and (due <= 0 or len(run.ended) == len(run.requests)):
            request, due = pending.pop(0)
            run.add(request)
        due -= 1
        first = next(id for id in run.requests if id not in run.ended)
        batch = run.step()
        assert first in ids(batch)
        assert len(ids(batch)) <= seqs
        assert batch.prefill_rows + batch.decode_rows <= rows
        assert run.steps <= bound
    assert run.scheduler.load().kv_blocks_used == 0


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.tuples(st.integers(1, 400), st.integers(1, 100), st.integers(-1, 1))),
            st.tuples(st.just("cancel"), st.integers(0, 20)),
            st.tuples(st.just("step"), st.integers(1, 12)),
        ),
        min_size=30,
        max_size=120,
    ),
    st.integers(1, 6),
)
def test_whatever_comes_and_goes_every_request_ends_once_with_each_token_once(
    events: list[tuple[str, Any]], seqs: int
) -> None:
    run = Run(max_num_seqs=seqs)
    for what, value in events:
        match what:
            case "add":
                prompt, stop_after, priority = value
                run.add(made(len(run.requests), prompt, 0, TOKENS, stop_after, priority))
            case "cancel":
                run.cancel(str(value))
            case _:
                for _ in range(value if len(run.ended) < len(run.requests) else 0):
                    if len(run.ended) < len(run.requests):
                        run.step()
    run.to_the_end()
    assert run.ended.keys() == run.requests.keys()
    assert run.scheduler.load().kv_blocks_used == 0


@pytest.mark.parametrize("seed", range(3))
def test_recomputation_stays_a_part_of_the_work(seed: int) -> None:
    """Ping-pong would show: many requests that all may take everything."""
    run = Run(*(made(number, 40 + 13 * seed, 0, TOKENS, 60 + 7 * (number % 5)) for number in range(30)))
    rows = 0
    while len(run.ended) < len(run.requests):
        batch = run.step()
        rows += batch.prefill_rows + batch.decode_rows
    needed = sum(len(request.prompt) + run.got[id] for id, request in run.requests.items())
    assert sum(run.preempted.values()) > 0
    assert rows < 2 * needed
