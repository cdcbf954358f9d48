import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.load.trace import (
    Arrival,
    LoadPhase,
    RequestShape,
    Trace,
    Window,
    arrivals_in,
    busiest,
    calm_burst_calm,
    fit,
    parse_window,
    repeat_bursts,
    replay,
    scale_lengths,
    upscale,
    window,
)

SHAPE = RequestShape(prompt_tokens=100, output_tokens=10)


def test_the_rate_of_each_phase_is_met_on_average() -> None:
    phases = [LoadPhase("before", 1000, 1.0), LoadPhase("burst", 1000, 5.0), LoadPhase("after", 1000, 0.5)]
    trace = arrivals_in(phases, SHAPE, seed=3)
    counts = [sum(start <= arrival.at < start + 1000 for arrival in trace) for start in (0, 1000, 2000)]
    assert counts == [pytest.approx(1000, rel=0.1), pytest.approx(5000, rel=0.1), pytest.approx(500, rel=0.2)]
    assert all(50 <= arrival.prompt_tokens <= 150 and 5 <= arrival.output_tokens <= 15 for arrival in trace)


def test_the_same_seed_gives_the_same_load_and_another_seed_another() -> None:
    phases = calm_burst_calm(60.0, 1.0, 4.0)
    assert arrivals_in(phases, SHAPE, seed=1) == arrivals_in(phases, SHAPE, seed=1)
    assert arrivals_in(phases, SHAPE, seed=1) != arrivals_in(phases, SHAPE, seed=2)


def test_a_phase_without_requests_is_silent() -> None:
    assert arrivals_in([LoadPhase("calm", 10, 0.0)], SHAPE, seed=1) == ()


def test_requests_of_a_steady_phase_come_at_equal_distances() -> None:
    trace = arrivals_in([LoadPhase("calm", 3.0, 2.0, steady=True), LoadPhase("burst", 5.0, 8.0)], SHAPE, seed=1)
    assert [arrival.at for arrival in trace[:5]] == [0.5, 1.0, 1.5, 2.0, 2.5]
    assert all(arrival.at > 3.0 for arrival in trace[5:])


@pytest.mark.parametrize(("seconds", "rate"), [(math.inf, 1.0), (1.0, math.inf), (1e12, 1.0)])
def test_more_requests_than_are_held_in_memory_are_refused_before_they_are_made(seconds: float, rate: float) -> None:
    with pytest.raises(ValueError, match="give it fewer seconds, or a lower rate"):
        arrivals_in([LoadPhase("calm", 10, 0.0), LoadPhase("burst", seconds, rate)], SHAPE, seed=1)


def test_the_three_phases_fill_the_duration() -> None:
    phases = calm_burst_calm(60.0, 1.0, 4.0)
    assert sum(phase.seconds for phase in phases) == pytest.approx(60.0)
    assert [phase.name for phase in phases] == ["before", "burst", "after"]
    assert [phase.rate for phase in phases] == [1.0, 4.0, 1.0]


ARRIVALS = st.builds(
    Arrival,
    at=st.floats(0, 1000, allow_nan=False),
    prompt_tokens=st.integers(1, 10_000),
    output_tokens=st.integers(1, 2_000),
)
TRACES = st.lists(ARRIVALS, max_size=60).map(lambda rows: tuple(sorted(rows, key=lambda row: row.at)))
EVERY_SECOND = tuple(Arrival(float(at), 100 + at, 10 + at) for at in range(100))


def lengths(trace: Trace) -> list[tuple[int, int]]:
    return [(arrival.prompt_tokens, arrival.output_tokens) for arrival in trace]


@given(TRACES, st.floats(1, 8), st.integers(0, 5))
def test_upscaling_keeps_stamps_and_the_sequence_of_lengths(trace: Trace, factor: float, seed: int) -> None:
    scaled = upscale(trace, factor, seed)
    assert len(scaled) <= len(trace)
    assert lengths(scaled) == lengths(trace)[: len(scaled)]
    assert [arrival.at for arrival in scaled] == sorted(arrival.at for arrival in scaled)
    assert {arrival.at for arrival in scaled} <= {arrival.at for arrival in trace}


@given(TRACES, st.integers(1, 6), st.integers(0, 5))
def test_a_whole_factor_repeats_every_stamp_equally_often(trace: Trace, factor: int, seed: int) -> None:
    stamps = Counter(arrival.at for arrival in trace)
    scaled = upscale(trace, factor, seed)
    # The last stamp may be cut short where the lengths run out.
    for at, count in Counter(arrival.at for arrival in scaled).items():
        assert count == factor * stamps[at] or (at == scaled[-1].at and count < factor * stamps[at])


@given(TRACES, st.integers(0, 5))
def test_a_factor_of_one_changes_nothing(trace: Trace, seed: int) -> None:
    assert upscale(trace, 1.0, seed) == trace


@given(TRACES, st.floats(0.01, 0.99), st.integers(0, 5))
def test_a_factor_below_one_thins(trace: Trace, factor: float, seed: int) -> None:
    kept = upscale(trace, factor, seed)
    remaining = iter(trace)
    assert all(arrival in remaining for arrival in kept)  # a subsequence


@given(TRACES, st.floats(0.1, 8), st.integers(0, 5))
def test_the_same_seed_gives_the_same_trace(trace: Trace, factor: float, seed: int) -> None:
    assert upscale(trace, factor, seed) == upscale(trace, factor, seed)


def test_a_fractional_factor_is_kept_on_average() -> None:
    trace = tuple(Arrival(float(at), 1, 1) for at in range(20_000))
    scaled = upscale(trace, 1.3, seed=1, until=10_000.0)
    assert len(scaled) == pytest.approx(13_000, rel=0.02)
    assert len(upscale(trace, 0.3, seed=1)) == pytest.approx(6_000, rel=0.05)


def test_a_window_is_filled_with_the_lengths_that_follow_it() -> None:
    scaled = replay(EVERY_SECOND, Window(10, 20), 3.0, 1.0, seed=0)
    assert len(scaled) == 30
    assert [arrival.at for arrival in scaled[:4]] == [0.0, 0.0, 0.0, 1.0]
    assert lengths(scaled) == lengths(EVERY_SECOND[10:40])


def test_thinning_a_window_stays_inside_it() -> None:
    scaled = replay(EVERY_SECOND, Window(10, 20), 0.5, 1.0, seed=0)
    assert 0 < len(scaled) < 10
    assert all(arrival.at < 10 for arrival in scaled)


@given(TRACES, st.floats(0.01, 4))
def test_scaled_lengths_are_at_least_one_token(trace: Trace, factor: float) -> None:
    scaled = scale_lengths(trace, factor)
    assert [arrival.at for arrival in scaled] == [arrival.at for arrival in trace]
    assert all(arrival.prompt_tokens >= 1 and arrival.output_tokens >= 1 for arrival in scaled)


@given(TRACES, st.integers(2, 4096))
def test_a_fitted_trace_never_exceeds_the_context(trace: Trace, context: int) -> None:
    for before, after in zip(trace, fit(trace, context), strict=True):
        assert after.prompt_tokens + after.output_tokens <= context
        assert after.prompt_tokens >= 1
        assert after.output_tokens >= 1
        if before.output_tokens <= context // 2 and before.prompt_tokens + before.output_tokens <= context:
            assert after == before


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan")])
def test_a_scale_that_is_not_positive_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="rate scale must be above 0"):
        upscale(EVERY_SECOND, factor, 0)
    with pytest.raises(ValueError, match="length scale must be above 0"):
        scale_lengths(EVERY_SECOND, factor)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60:180", Window(60, 180)),
        ("60+120", Window(60, 180)),
        ("1.5:", Window(1.5, None)),
        (":30", Window(0, 30)),
        ("+30", Window(0, 30)),
    ],
)
def test_windows_are_written_as_start_and_end_or_start_and_length(text: str, expected: Window) -> None:
    assert parse_window(text) == expected


@pytest.mark.parametrize("text", ["", ":", "+", "60", "a:b", "-1:5", "60:60", "60:30", "60+0", "1:2:3"])
def test_a_bad_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="window"):
        parse_window(text)


def test_a_window_starts_at_zero() -> None:
    part = window(EVERY_SECOND, Window(10, 12))
    assert part == (Arrival(0.0, 110, 20), Arrival(1.0, 111, 21))


def test_the_busiest_quarter_is_where_most_tokens_arrive() -> None:
    calm = [Arrival(float(at), 10, 1) for at in range(100)]
    burst = [Arrival(40 + at / 10, 50, 1) for at in range(200)]
    trace = tuple(sorted([*calm, *burst], key=lambda arrival: arrival.at))
    found = busiest(trace, 100.0)
    assert found.seconds == 25
    assert found.start == pytest.approx(36, abs=5)
    assert busiest((), 100.0) == Window(0, 25)


def test_requests_of_bursts_come_several_times_until_the_next_one() -> None:
    calm = [Arrival(at, 10, 1) for at in (1.0, 6.0, 12.0)]
    burst = [Arrival(15.0 + number / 8, 10, 1) for number in range(40)]
    trace = (*calm, *burst)
    doubled = repeat_bursts(trace, 2, 20.0)
    assert [one.at for one in doubled] == [1.0, 6.0, 12.0, *(15.0 + number / 16 for number in range(80))]
    assert repeat_bursts(trace, 1, 20.0) == trace
    assert repeat_bursts((), 2, 20.0) == ()
