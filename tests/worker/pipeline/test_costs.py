"""Whether KV is moved or computed again."""

from livescale.services.worker.pipeline.costs import Way, choose_way


def test_what_takes_less_by_what_was_measured_is_done_and_the_reason_says_so() -> None:
    faster, slower = (choose_way("auto", 4_000, rate, 5_000.0) for rate in (40e6, 8e6))
    assert faster == Way(moves=True, reason="a token takes 100 us to be moved, 200 us to be computed")
    assert slower == Way(moves=False, reason="a token takes 500 us to be moved, 200 us to be computed")


def test_equally_fast_it_is_computed_as_that_can_not_be_lost() -> None:
    assert not choose_way("auto", 4_000, 20e6, 5_000.0).moves


def test_what_was_not_measured_is_not_counted_on() -> None:
    assert choose_way("auto", 1, None, 1.0) == Way(moves=False, reason="it is not known yet how fast links are")
    assert choose_way("auto", 1, 1e12, None) == Way(moves=False, reason="it is not known yet how fast prefill is")


def test_who_is_told_does_so_whatever_was_measured() -> None:
    assert choose_way("move", 10**9, None, 1e9) == Way(moves=True, reason="move is set")
    assert choose_way("recompute", 1, 1e12, 1.0) == Way(moves=False, reason="recompute is set")
