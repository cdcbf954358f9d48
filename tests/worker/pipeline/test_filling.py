"""What goes with which step, until workers have KV of what is to be theirs."""

from hypothesis import given
from hypothesis import strategies as st

from livescale.services.worker.pipeline.filling import (
    FILL_ROWS,
    Filling,
    KvWay,
    choose_way,
    computed_from,
    share_out,
)
from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, PROMPT_CUT, ScheduledChunk
from livescale.services.worker.scheduling.sequence import Sequence
from tests.worker.requests import submit

WORKERS = ("a", "b")


def cached(id: str, prompt: int, generated: int = 0, start: int = 0) -> Sequence:
    """A sequence of which all but the last token is computed."""
    sequence = Sequence(submit(id, [7] * prompt, max_tokens=99, generated=[8] * generated), 1)
    sequence.blocks, sequence.computed = range(start, start + 20), prompt + max(generated - 1, 0)
    return sequence


def computing(*workers: str) -> Filling:
    """A filling in which nothing can be moved to any worker."""
    filling = Filling(workers)
    for worker in workers:
        filling.not_moved(worker, computes=True)
    return filling


def told(fill: tuple[str, list[ScheduledChunk]]) -> tuple[str, list[tuple[str, int, int]]]:
    worker, pieces = fill
    return worker, [(one.request_id, one.start, one.stop) for one in pieces]


def test_shares_are_even_and_who_has_one_keeps_it() -> None:
    assert share_out("vwxyz", WORKERS, {}) == {"v": "a", "w": "b", "x": "a", "y": "b", "z": "a"}
    assert share_out("xyz", WORKERS, {"x": "b", "y": "b", "gone": "a"}) == {"x": "b", "y": "b", "z": "a"}


def test_workers_take_turns_and_get_so_many_rows_of_their_shares_in_order() -> None:
    here = [cached("r", 350, 5), cached("s", 40, 3, start=20)]
    filling = computing(*WORKERS)
    assert told(filling.begin(5, here)) == ("b", [("s", 0, 40), ("s", 40, 42)])
    assert told(filling.begin(6, here)) == ("a", [("r", 0, 128)])
    assert told(filling.begin(7, here)) == ("b", [])
    filling.ended(5, [])
    filling.ended(6, [])
    assert [one.filled.stop for one in here if one.filled] == [128, 42]
    assert not filling.is_done(here)
    assert told(filling.begin(8, here)) == ("a", [("r", 128, 256)])
    assert not filling.is_done(here)
    filling.ended(8, [])
    assert [one.filled.stop for one in here if one.filled] == [256, 42]
    assert filling.is_done(here)


def test_no_more_of_a_prompt_is_filled_than_is_computed() -> None:
    sequence = cached("r", 300)
    sequence.computed = 200
    moving, filling = Filling(("a",)), computing("a")
    assert told(("a", moving.begin_move("a", [sequence])))[1] == [("r", 0, 128)]
    moving.moved("a")
    assert told(("a", moving.begin_move("a", [sequence])))[1] == [("r", 128, 200)]
    moving.moved("a")
    sequence.filled = None
    assert told(filling.begin(1, [sequence]))[1] == [("r", 0, 128)]
    filling.ended(1, [])
    assert filling.is_done([sequence])
    sequence.computed = 300
    assert told(filling.begin(2, [sequence]))[1] == [("r", 128, 256)]


def test_nothing_is_begun_once_what_is_under_way_is_enough() -> None:
    here = [cached("r", 200, 5), cached("s", 200, 3, start=20)]
    filling = computing(*WORKERS)
    assert [len(told(filling.begin(step, here))[1]) for step in range(1, 5)] == [1, 1, 0, 0]
    assert not filling.is_done(here)


def test_nothing_is_drawn_and_chunks_are_those_of_the_prompt() -> None:
    _, [piece] = computing("a").begin(1, [cached("r", 300)])
    assert (piece.sampling, piece.decode, len(piece.tokens)) == (None, False, PREFILL_CHUNK)


def test_a_prompt_is_filled_although_all_others_gain_tokens() -> None:
    decoding, prompt = cached("r", 10, 20), cached("s", PREFILL_CHUNK)
    filling = computing("a")
    for step in range(1, 4):
        filling.begin(step, [decoding, prompt])
        filling.ended(step, [])
        decoding.tokens.append(9)
        decoding.computed += 1
    assert prompt.filled is not None
    assert prompt.filled.stop == PREFILL_CHUNK


def test_a_worker_that_did_not_fill_is_not_asked_again_or_waited_for() -> None:
    here = [cached("r", FILL_ROWS + 1), cached("s", FILL_ROWS + 1)]
    filling = computing(*WORKERS)
    assert len(told(filling.begin(1, here))[1]) == 1
    filling.begin(2, here)
    assert not filling.is_done(here)
    filling.ended(1, ["b"])
    filling.ended(2, [])
    assert told(filling.begin(3, here)) == ("", [])
    assert filling.is_done(here)
    assert here[1].filled is not None
    assert here[1].filled.stop == 0


def test_a_request_that_loses_its_blocks_is_filled_anew_in_those_it_gets() -> None:
    sequence = cached("r", 200)
    filling = computing("a")
    filling.begin(1, [sequence])
    sequence.preempt()
    sequence.blocks, sequence.computed = range(30, 50), 200
    filling.ended(1, [])
    assert sequence.filled is None
    _, [piece] = filling.begin(2, [sequence])
    assert (piece.start, piece.blocks.start) == (0, 30)
    filling.ended(2, [])
    assert sequence.filled is not None
    assert (sequence.filled.first_block, sequence.filled.stop) == (30, 128)


def test_it_is_not_done_before_it_is_known_whose_everything_is() -> None:
    assert not Filling(WORKERS).is_done([cached("r", 3)])
    assert Filling(WORKERS).is_done([])


def test_what_is_moved_goes_with_no_step_and_one_part_at_a_time() -> None:
    here = [cached("r", 200, 5)]
    filling = Filling(("a",))
    assert told(filling.begin(1, here)) == ("", [])
    assert told(("a", filling.begin_move("a", here)))[1] == [("r", 0, 128)]
    assert not filling.is_done(here)
    filling.moved("a")
    assert told(("a", filling.begin_move("a", here)))[1] == [("r", 128, 200), ("r", 200, 204)]
    filling.moved("a")
    assert filling.is_done(here)
    assert filling.begin_move("a", here) == []


def test_what_does_not_come_is_computed_where_nothing_can_come_late() -> None:
    for computes, rows in ((True, [("r", 0, 128)]), (False, [])):
        here = [cached("r", 200)]
        filling = Filling(("a",))
        filling.begin_move("a", here)
        filling.not_moved("a", computes=computes)
        assert filling.movers == set()
        assert told(filling.begin(1, here))[1] == rows


def test_no_worker_computes_before_all_have_said_whether_they_do() -> None:
    here = [cached("r", 200), cached("s", 100)]
    filling = Filling(("a", "b", "idle"))
    filling.begin_move("a", here)
    filling.not_moved("a", computes=True)
    filling.begin_move("b", here)
    assert told(filling.begin(1, here)) == ("", [])
    filling.moved("b")
    assert filling.begin_move("idle", here) == []
    assert told(filling.begin(2, here)) == ("a", [("r", 0, 128)])


def test_what_takes_less_by_what_was_measured_is_done_and_the_reason_says_so() -> None:
    faster, slower = (choose_way("auto", 4_000, rate, 5_000.0) for rate in (40e6, 8e6))
    assert faster == KvWay(moves=True, reason="a token takes 100 us to be moved, 200 us to be computed")
    assert slower == KvWay(moves=False, reason="a token takes 500 us to be moved, 200 us to be computed")


def test_equally_fast_it_is_computed_as_that_can_not_be_lost() -> None:
    assert not choose_way("auto", 4_000, 20e6, 5_000.0).moves


def test_what_was_not_measured_is_not_counted_on() -> None:
    assert choose_way("auto", 1, None, 1.0) == KvWay(moves=False, reason="it is not known yet how fast links are")
    assert choose_way("auto", 1, 1e12, None) == KvWay(moves=False, reason="it is not known yet how fast prefill is")


def test_a_worker_with_a_set_way_takes_it_whatever_was_measured() -> None:
    assert choose_way("move", 10**9, None, 1e9) == KvWay(moves=True, reason="move is set")
    assert choose_way("recompute", 1, 1e12, 1.0) == KvWay(moves=False, reason="recompute is set")


@given(st.integers(1, 400), st.integers(0, 200), st.integers(0, 600))
def test_what_was_computed_comes_again_in_chunks_and_nothing_is_sampled(
    prompt: int, generated: int, computed: int
) -> None:
    one = cached("a", prompt, generated)
    one.computed = min(computed, len(one.tokens))
    if one.computed < prompt:
        one.computed = one.computed // PROMPT_CUT * PROMPT_CUT
    chunks = list(computed_from(one, 0))
    assert [token for chunk in chunks for token in chunk.tokens] == one.tokens[: one.computed]
    assert all(chunk.sampling is None and len(chunk.tokens) <= PREFILL_CHUNK for chunk in chunks)
