"""Running time goes with the clock while its process is awake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.runtime.running_loop import MOST_SECONDS, TICK_SECONDS, RunningTime


def ticking(running: RunningTime, start: float, end: float) -> None:
    ticks = round((end - start) / TICK_SECONDS)
    for number in range(1, ticks + 1):
        running.tick(start + number * TICK_SECONDS)


def test_awake_it_is_the_machines_time() -> None:
    running = RunningTime(10.0)
    ticking(running, 10.0, 20.0)
    assert (running.at(20.05), running.away) == (20.05, 0.0)


@pytest.mark.parametrize("seconds", [0.5, 2.0, 5.0, 3600.0])
def test_a_sleep_counts_for_no_more_than_a_late_tick(seconds: float) -> None:
    running = RunningTime(0.0)
    ticking(running, 0.0, 1.0)
    woken = 1.0 + seconds
    assert running.at(woken) == 1.0 + MOST_SECONDS  # before its tick, too
    assert running.tick(woken) == pytest.approx(seconds - MOST_SECONDS)
    assert running.at(woken) == pytest.approx(1.0 + MOST_SECONDS)
    ticking(running, woken, woken + 1.0)
    assert running.at(woken + 1.0) == pytest.approx(2.0 + MOST_SECONDS)
    assert running.away == pytest.approx(seconds - MOST_SECONDS)


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.booleans())))
def test_it_never_goes_back_nor_faster_than_the_clock(steps: list[tuple[float, bool]]) -> None:
    running, clock, last = RunningTime(0.0), 0.0, 0.0
    for seconds, ticks in steps:
        clock += seconds
        if ticks:
            running.tick(clock)
        now = running.at(clock)
        assert last - 1e-9 <= now <= last + seconds + 1e-9
        last = now
