"""Made-up arrivals: their rates, in bursts and between them."""

from pathlib import Path

import pytest

from livescale.load.scenario.arrivals import Arrivals, Burst, phases

HERE = Path()


def test_a_burst_has_its_own_rate_and_the_later_of_two_counts() -> None:
    bursts = [Burst(at=10, seconds=20, rate=5), Burst(at=20, seconds=5, rate=9), Burst(at=90, seconds=20, rate=3)]
    found = [(phase.seconds, phase.rate) for phase in phases(1, bursts, 100)]
    assert found == [(10, 1), (10, 5), (5, 9), (5, 5), (60, 1), (10, 3)]


def test_rates_are_kept_and_the_seed_decides() -> None:
    arrivals = Arrivals(rate=10, bursts=(Burst(at=50, seconds=10, rate=200),), prompt_tokens=100, output_tokens=10)
    drawn = arrivals.draw(100, 1, HERE)
    burst = [one for one in drawn if 50 <= one.at < 60]
    assert len(burst) == pytest.approx(2000, rel=0.1)
    assert len(drawn) - len(burst) == pytest.approx(900, rel=0.15)
    assert all(50 <= one.prompt_tokens <= 150 and 5 <= one.output_tokens <= 15 for one in drawn)
    assert drawn == arrivals.draw(100, 1, HERE) != arrivals.draw(100, 2, HERE)
