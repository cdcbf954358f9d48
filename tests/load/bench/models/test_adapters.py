"""The rows of adapters: medians, ratios and their bars, and steps of a tiny model."""

from pathlib import Path

import pytest

from livescale.load.bench.models.adapters import CASES, adapter_rows, measure_adapters
from livescale.services.worker.engine.kernels.variants import choose_kernels
from tests.checkpoints import tiny_checkpoint


@pytest.mark.parametrize(("slower", "kept"), [(1.09, [True, True]), (1.15, [False, True]), (1.3, [False, False])])
def test_medians_are_compared_and_bars_told(slower: float, kept: list[bool]) -> None:
    times = {(rows, count): [0.0, 1.0 if count == 0 else slower, 9.0] for rows, most, _ in CASES for count in (0, most)}
    records = list(adapter_rows("adapters", times))
    assert [record.ok for record in records] == kept
    assert [record.ratio for record in records] == [slower, slower]


def test_steps_with_adapters_and_without_are_measured() -> None:
    told: list[str] = []
    times = measure_adapters(Path(tiny_checkpoint("qwen2")), choose_kernels("auto").kernels, 2, told.append)
    assert {case: len(steps) for case, steps in times.items()} == {
        (rows, count): 2 for rows, most, _ in CASES for count in (0, most)
    }
    assert len(told) == len(CASES)
