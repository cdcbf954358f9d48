"""Loads made up from a seed."""

import pytest

from livescale.load.trace import Phase, Shape, calm_burst_calm, poisson

SHAPE = Shape(prompt_tokens=100, output_tokens=10)


def test_the_rate_of_each_phase_is_met_on_average() -> None:
    phases = [Phase("before", 1000, 1.0), Phase("burst", 1000, 5.0), Phase("after", 1000, 0.5)]
    trace = poisson(phases, SHAPE, seed=3)
    counts = [sum(start <= arrival.at < start + 1000 for arrival in trace) for start in (0, 1000, 2000)]
    assert counts == [pytest.approx(1000, rel=0.1), pytest.approx(5000, rel=0.1), pytest.approx(500, rel=0.2)]
    assert all(50 <= arrival.prompt_tokens <= 150 and 5 <= arrival.output_tokens <= 15 for arrival in trace)


def test_the_same_seed_gives_the_same_load_and_another_seed_another() -> None:
    phases = calm_burst_calm(60.0, 1.0, 4.0)
    assert poisson(phases, SHAPE, seed=1) == poisson(phases, SHAPE, seed=1)
    assert poisson(phases, SHAPE, seed=1) != poisson(phases, SHAPE, seed=2)


def test_a_phase_without_requests_is_silent() -> None:
    assert poisson([Phase("calm", 10, 0.0)], SHAPE, seed=1) == ()


def test_the_three_phases_fill_the_duration() -> None:
    phases = calm_burst_calm(60.0, 1.0, 4.0)
    assert sum(phase.seconds for phase in phases) == pytest.approx(60.0)
    assert [phase.name for phase in phases] == ["before", "burst", "after"]
    assert [phase.rate for phase in phases] == [1.0, 4.0, 1.0]
