"""How far rows of logits are from the right ones, and engines that are asked for them."""

from pathlib import Path
from statistics import median

import numpy as np
import pytest

from livescale.load.bench.engine.processes import engine_processes
from livescale.load.bench.engine.run import row_error
from livescale.load.bench.models.comparisons import OWN, TRANSFORMERS
from livescale.load.bench.models.errors import LENGTHS, SEEDS, TOKENS, measure_errors
from tests.checkpoints import tiny_checkpoint


def test_an_error_is_counted_in_standard_deviations_of_the_right_row() -> None:
    right = np.array([-2.0, 2.0, -2.0, 2.0], np.float32)
    assert row_error((right + np.float32(0.5)).tobytes(), right.tobytes()) == pytest.approx(0.25)


@pytest.mark.slow
def test_each_engine_s_errors_are_told_by_row(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, engine_processes(Path(tiny_checkpoint("qwen2")), log) as members:
        engines = [members.start(program)[0] for program in (OWN, TRANSFORMERS)]
        errors = measure_errors(members, engines, TRANSFORMERS, 1_000)
    assert [len(rows) for rows in errors.values()] == [TOKENS * len(LENGTHS) * len(SEEDS)] * 2
    assert all(0.0 < error < 0.1 for error in errors[OWN.name])
    assert 0.0 < median(errors[TRANSFORMERS.name]) < 0.1
