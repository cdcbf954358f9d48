"""CPU times of simulations, scaled by a loop that is timed beside them."""

import pytest

from livescale.load.scenario.bench import measure
from livescale.load.scenario.bench.cases import BenchCase, Traces
from livescale.load.scenario.bench.measure import CpuWatch, ScaledCpu, exponent, run_case
from livescale.load.scenario.play import Progress


@pytest.fixture(autouse=True)
def short_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of a hundredth of the length, which are told to take as much less."""
    monkeypatch.setattr(measure, "ROUNDS", measure.ROUNDS // 100)
    monkeypatch.setattr(measure, "LOOP_SECONDS", measure.LOOP_SECONDS / 100)


def test_the_time_of_loops_is_left_out_and_says_how_slow_the_core_is(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((0.0, 0.0072, 0.0072, 3.0, 3.0072, 3.0072, 5.0072, 5.0072))
    monkeypatch.setattr("time.process_time", lambda: next(times))
    cpu = ScaledCpu()
    cpu.time_loop()
    assert cpu.seconds() == pytest.approx(4.9928)
    assert cpu.slowness == pytest.approx(2.0)


def test_what_an_idle_system_takes_counts_from_when_it_has_settled() -> None:
    watch = CpuWatch(ScaledCpu(), 10.0)
    for at in (0.5, 2.5, 9.5):
        watch(Progress(at, 0, 0))
    virtual, cpu = watch.steady()
    assert virtual == 7.0
    assert 0.0 <= cpu < 1.0


def test_a_run_is_the_same_in_every_run_and_its_costs_are_measured() -> None:
    case = BenchCase(workers=2, seconds=3.0, trace="code")
    one, other = run_case(case, Traces()), run_case(case, Traces())
    assert one.digest == other.digest
    assert (one.failed, one.requests) == (0, other.requests)
    assert one.requests > 0
    assert 0 < one.steady_seconds < one.cpu_seconds
    assert one.peak_bytes > 50e6


def test_growth_is_the_power_of_the_size() -> None:
    assert exponent([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2.0)
    assert exponent([64, 1024], [5.0, 5.0]) == pytest.approx(0.0)
