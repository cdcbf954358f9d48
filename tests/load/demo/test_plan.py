"""The demo's load is too much for one worker and not for two, on any machine."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livescale.load.demo.plan import BURST_LOAD, CALM_LOAD, SHAPE, MeasuredRates, load_of, plan_load
from livescale.load.settings import DemoSettings
from livescale.load.trace import Arrival, Trace, TraceError

CONTEXT = 4096
SETTINGS = DemoSettings(duration=600.0)
LONGEST = Arrival(0.0, SHAPE.prompt_tokens * 3 // 2, SHAPE.output_tokens * 3 // 2)
CAPACITIES = st.builds(MeasuredRates, prefill_rate=st.floats(300, 5_000), decode_rate=st.floats(100, 2_000))


def share(trace: Trace, capacity: MeasuredRates, start: float, end: float) -> float:
    return sum(capacity.seconds(arrival) for arrival in trace if start <= arrival.at < end) / (end - start)


@settings(max_examples=25)
@given(CAPACITIES, st.integers(0, 10))
def test_the_burst_asks_for_more_than_one_worker_and_less_than_two(capacity: MeasuredRates, seed: int) -> None:
    load = plan_load(DemoSettings(duration=1200.0, seed=seed), capacity, None, CONTEXT)
    assert load.burst.end is not None
    assert share(load.trace, capacity, load.burst.start, load.burst.end) == pytest.approx(BURST_LOAD, rel=0.35)
    assert share(load.trace, capacity, 0, load.burst.start) == pytest.approx(CALM_LOAD, rel=0.5)
    calm = [arrival.at for arrival in load.trace if arrival.at < load.burst.start]
    assert all(later - earlier > 2 * capacity.seconds(LONGEST) for earlier, later in pairwise(calm))
    assert load.seconds == 1200.0
    assert (load.rate_scale, load.length_scale) == (None, None)


def bursty(count: int = 3000, prompt: int = 1500, output: int = 200) -> Trace:
    """A trace of five requests a second, and fifteen in the middle."""
    calm = [Arrival(at / 5, prompt, output) for at in range(count)]
    burst = [Arrival(200 + at / 10, prompt, output) for at in range(1500)]
    return tuple(sorted([*calm, *burst], key=lambda arrival: arrival.at))


def test_a_trace_is_scaled_to_the_machine() -> None:
    capacity = MeasuredRates(prefill_rate=2000, decode_rate=400)
    load = plan_load(SETTINGS, capacity, bursty(), CONTEXT)
    assert load.length_scale == pytest.approx((SHAPE.prompt_tokens + SHAPE.output_tokens) / 1700)
    assert load.rate_scale is not None
    assert load_of(load.trace, capacity, load.seconds) == pytest.approx(BURST_LOAD, rel=0.2)
    assert load.burst.start == pytest.approx(200, abs=10)


def test_given_scales_are_used_as_they_are() -> None:
    settings = DemoSettings(duration=100.0, rate_scale=2.0, length_scale=0.5)
    load = plan_load(settings, MeasuredRates(1000, 100), bursty(), CONTEXT)
    assert (load.rate_scale, load.length_scale) == (2.0, 0.5)
    assert len(load.trace) == 1000
    assert {(arrival.prompt_tokens, arrival.output_tokens) for arrival in load.trace} == {(750, 100)}


def test_a_window_is_replayed_for_as_long_as_it_is() -> None:
    settings = DemoSettings(window="200+50", rate_scale=1.0, length_scale=1.0)
    load = plan_load(settings, MeasuredRates(1000, 100), bursty(), CONTEXT)
    assert load.seconds == 50
    assert len(load.trace) == 750


def test_prompts_are_cut_to_the_models_context() -> None:
    settings = DemoSettings(duration=100.0, rate_scale=1.0, length_scale=1.0)
    load = plan_load(settings, MeasuredRates(1000, 100), bursty(), 512)
    assert all(arrival.prompt_tokens + arrival.output_tokens <= 512 for arrival in load.trace)


def test_an_endless_load_is_refused() -> None:
    with pytest.raises(TraceError, match="the load has more than 10,000,000 requests"):
        plan_load(DemoSettings(duration=math.inf), MeasuredRates(1000, 100), None, CONTEXT)


def test_a_window_without_requests_is_refused() -> None:
    with pytest.raises(TraceError, match="no request in this window"):
        plan_load(DemoSettings(window="9000:9010"), MeasuredRates(1000, 100), bursty(), CONTEXT)
    with pytest.raises(TraceError, match="no request of the trace is left"):
        plan_load(DemoSettings(window="0:10", rate_scale=1e-9), MeasuredRates(1000, 100), bursty(), CONTEXT)
