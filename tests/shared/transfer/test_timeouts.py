"""When a flow is given up."""

from livescale.shared.transfer.timeouts import AdaptiveTimeout, Timeouts


def test_until_a_chunk_has_shown_how_fast_they_move_nobody_is_impatient() -> None:
    pace = AdaptiveTimeout(Timeouts(first=30.0), window=4, now=5.0)
    assert (pace.limit, pace.due) == (30.0, 35.0)
    pace.restart(6.0)
    assert (pace.limit, pace.due) == (30.0, 36.0)
    pace.moved(6.01)
    assert (pace.limit, pace.due) == (1.0, 7.01)


def test_on_a_fast_link_silence_may_last_a_second() -> None:
    pace = AdaptiveTimeout(Timeouts(), window=4, now=7.0)
    for number in range(1, 100):
        pace.moved(7.0 + number * 0.01)
    assert pace.limit == 1.0


def test_on_a_slow_link_it_may_last_eight_times_what_chunks_take() -> None:
    pace = AdaptiveTimeout(Timeouts(least=1.0, factor=8.0), window=2, now=10.0)
    for now in (10.5, 11.0, 11.5):
        pace.moved(now)
    assert pace.limit == 8 * 2 * 0.5
    assert pace.due == 11.5 + 8 * 2 * 0.5


def test_a_sudden_rise_of_contention_is_followed_at_once_however_long_the_link_was_fast() -> None:
    pace = AdaptiveTimeout(Timeouts(), window=4, now=0.0)
    for number in range(1, 10_000):
        pace.moved(number * 0.01)
    pace.moved(9_999 * 0.01 + 0.9)  # ninety others joined
    assert pace.limit > 8 * 4 * 0.8


def test_what_was_slow_once_is_forgotten() -> None:
    pace = AdaptiveTimeout(Timeouts(), window=4, now=0.0)
    pace.moved(20.0)
    for number in range(1, 100):
        pace.moved(20.0 + number * 0.01)
    assert pace.limit == 1.0


def test_what_the_sender_itself_waited_for_does_not_count_as_slow() -> None:
    pace = AdaptiveTimeout(Timeouts(), window=4, now=0.0)
    for number in range(1, 100):
        pace.restart(number * 0.25)
    pace.moved(100 * 0.25)
    assert pace.limit == 8 * 4 * 0.25
