"""What random systems take."""

import pytest

from livescale.load.scenario.bench import measure
from livescale.load.scenario.bench.seeds import run_seeds


def test_each_seed_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ROUNDS", measure.ROUNDS // 100)
    run = run_seeds(3, 2)
    assert len(run.seconds) == 2
    assert min(run.seconds) > 0
    assert run.failed == 0
