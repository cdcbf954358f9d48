"""Several batches under way: disjoint requests, even parts, and KV that no other request has overwritten."""

from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.worker.scheduling.batch import Batch, Chosen
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.messages.requests import Submit
from tests.fuzz.effort import examples
from tests.worker.requests import BLOCK_TOKENS, limits, submit
from tests.worker.scheduling.test_allocation import BLOCKS, TOKENS, endless, ids, made


class Flights:
    """Batches are computed in the order in which they were made, each token is the number of those before it.

    `cache`: what was written last to each of its places.
    """

    def __init__(self, at_once: int, *requests: Submit, **fields: Any) -> None:
        self.scheduler = Scheduler(limits(**{"kv_blocks": BLOCKS, **fields}))
        self.at_once = at_once
        self.under_way: deque[Batch] = deque()
        self.cache: dict[int, tuple[str, int, int]] = {}
        self.got: Counter[str] = Counter()
        self.ended: dict[str, str] = {}
        for request in requests:
            self.scheduler.add(request)

    def begin(self) -> list[Batch]:
        """Begin as many batches as may be under way."""
        begun = []
        while len(self.under_way) < self.at_once and (batch := self.scheduler.next_batch(self.at_once)) is not None:
            self.scheduler.check_invariants()
            self.compute(batch)
            self.under_way.append(batch)
            begun.append(batch)
        return begun

    def compute(self, batch: Batch) -> None:
        for chunk in batch.chunks:
            first = chunk.blocks.start * BLOCK_TOKENS
            for position, token in zip(range(chunk.start, chunk.stop), chunk.tokens, strict=True):
                self.cache[first + position] = chunk.request_id, position, token
            for position in range(chunk.stop):
                assert self.cache[first + position][:2] == (chunk.request_id, position), "its KV is not its own"

    def end(self) -> None:
        """End the first of the batches under way."""
        batch = self.under_way.popleft()
        drawing = [chunk.request_id for chunk in batch.chunks if chunk.sampling is not None]
        for output in self.scheduler.complete(batch, Chosen([self.got[id] for id in drawing]), 0.0):
            assert output.row.index == self.got[output.row.request_id]
            self.got[output.row.request_id] += len(output.row.token_ids)
            if output.row.finish_reason is not None:
                self.ended[output.row.request_id] = output.row.finish_reason
        self.scheduler.check_invariants()

    def cancel(self, request_id: str) -> None:
        output = self.scheduler.cancel(request_id)
        if output is not None:
            self.ended[request_id] = "cancelled"
        self.scheduler.check_invariants()

    def to_the_end(self) -> None:
        self.begin()
        while self.under_way:
            self.end()
            self.begin()


def test_each_batch_has_an_even_part_of_the_requests_and_none_is_in_two() -> None:
    run = Flights(3, *(submit(str(number), [7] * 20, max_tokens=9) for number in range(8)))
    assert [ids(batch) for batch in run.begin()] == [["0", "1", "2"], ["3", "4", "5"], ["6", "7"]]
    run.end()
    assert [ids(batch) for batch in run.begin()] == [["0", "1", "2"]]


def test_one_request_is_in_one_batch_however_many_there_may_be() -> None:
    run = Flights(4, submit("a", [7] * 300, max_tokens=2), max_num_batched_tokens=144)
    assert [ids(batch) for batch in run.begin()] == [["a"]]
    run.to_the_end()
    assert run.ended == {"a": "length"}


def test_no_more_batches_are_under_way_than_may_be() -> None:
    run = Flights(2, *(submit(str(number)) for number in range(3)))
    run.begin()
    with pytest.raises(RuntimeError, match="2 batches are under way"):
        run.scheduler.next_batch(2)


def test_a_request_in_a_step_is_preempted_only_after_it() -> None:
    run = Flights(2, endless("first"), endless("last"))
    run.begin()
    while "last" not in (preempted := [id for batch in run.begin() for id in batch.preempted]):
        assert not preempted
        assert {id for batch in run.under_way for id in ids(batch)} <= {"first", "last"}
        run.end()
    assert run.got["first"] > 100


def test_all_begin_anew_and_what_was_under_way_is_forgotten() -> None:
    run = Flights(2, *(submit(str(number), [7] * 20, max_tokens=4) for number in range(3)))
    run.begin()
    run.end()
    run.begin()
    run.scheduler.start_over()
    assert [one.request_id for one in run.scheduler.in_order] == ["0", "1", "2"]
    run.under_way.clear()
    assert run.scheduler.load().kv_blocks_used == 0
    run.to_the_end()
    assert run.ended == dict.fromkeys("012", "length")
    assert run.got == dict.fromkeys("012", 4)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.tuples(st.integers(1, 400), st.integers(1, 60), st.integers(-1, 1))),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("end"), st.integers(1, 8)),
    ),
    min_size=20,
    max_size=80,
)


@examples(20)
@given(EVENTS, st.integers(1, 4), st.integers(2, 6))
def test_whatever_comes_and_goes_every_request_ends_with_each_token_once(
    events: list[tuple[str, Any]], at_once: int, seqs: int
) -> None:
    run = Flights(at_once, max_num_seqs=seqs)
    added = 0
    for what, value in events:
        match what:
            case "add":
                prompt, stop_after, priority = value
                run.scheduler.add(made(added, prompt, 0, TOKENS, stop_after, priority))
                added += 1
            case "cancel":
                run.cancel(str(value))
            case _:
                for _ in range(value):
                    run.begin()
                    if run.under_way:
                        run.end()
        run.begin()
    run.to_the_end()
    assert len(run.ended) == added
    assert run.scheduler.load().kv_blocks_used == 0
