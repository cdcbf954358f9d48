"""Scenarios that are run: what comes of them, the same again from one seed, and how systems differ."""

from statistics import fmean

import msgspec
import pytest

from livescale.load.bench.systems.play import SystemRun, play
from tests.load.bench.systems.examples import SECONDS, scenario


@pytest.fixture(scope="module")
def full() -> SystemRun:
    return play(scenario("distserve-full"))


def means(run: SystemRun) -> tuple[float, float]:
    return fmean(one.ttft for one in run.requests), fmean(gap for one in run.requests for gap in one.gaps)


def test_every_request_of_the_window_is_answered_and_counted(full: SystemRun) -> None:
    arrivals = scenario("distserve-full").arrivals
    assert full.faults == []
    assert len(full.requests) == sum(arrival.at >= 0.5 for arrival in arrivals)
    assert all(len(one.gaps) >= 2 and one.ttft > 0 for one in full.requests)
    assert full.used_seconds == pytest.approx(4 * (SECONDS - 0.5))


def test_a_run_is_the_same_again(full: SystemRun) -> None:
    again = play(scenario("distserve-full"))
    assert msgspec.structs.replace(again, cpu_seconds=0.0) == msgspec.structs.replace(full, cpu_seconds=0.0)


def test_with_autoscaling_off_the_system_equals_distserve_full(full: SystemRun) -> None:
    ours = play(scenario("+zigzag", fixed_share=1.0, disaggregation="on", prefill_share=0.625))
    for one, other in zip(means(ours), means(full), strict=True):
        assert one == pytest.approx(other, rel=0.03)
    assert ours.used_seconds == pytest.approx(full.used_seconds)


def test_a_system_that_loads_in_no_time_has_workers_sooner_and_progress_is_told() -> None:
    told = list[float]()
    ideal = play(scenario("ideal", workers=2, rate=20.0))
    disk = play(scenario("serverlessllm", workers=2, rate=20.0), told.append)
    assert ideal.faults == disk.faults == []
    assert 2 * means(ideal)[0] < means(disk)[0]
    assert max(count for _, count in ideal.workers) == 2
    assert told
    assert told == sorted(told)
