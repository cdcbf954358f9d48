"""`livescale profile`: what is measured, what is made of it, and that a modelled engine takes it."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.load.profile.cases import CACHE_TOKENS, DECODES, PROMPTS, batches
from livescale.load.profile.fit import Measured, fit, worst_error
from livescale.services.cli.main import cli
from livescale.services.worker.engine.modelled_steps import work_of
from livescale.services.worker.scheduling.batch import MAX_BATCH_ROWS
from livescale.shared.latency import Latency
from livescale.shared.latency_file import find_latency
from tests.made import tiny

BLOCK_TOKENS = 16
LATENCY = Latency(source="known", prefill=(2.0, 0.05, 2e-5), decode=(3.0, 0.1, 4e-4))


def test_every_case_is_a_step_of_requests_that_share_no_kv_block() -> None:
    cases = list(batches(BLOCK_TOKENS))
    assert len(cases) == len(PROMPTS) + len(DECODES)
    for batch in cases:
        assert batch.prefill_rows + batch.decode_rows <= MAX_BATCH_ROWS
        stretches = {chunk.request_id: chunk.blocks for chunk in batch.chunks}
        blocks = [block for stretch in stretches.values() for block in stretch]
        assert len(blocks) == len(set(blocks))
        assert max(blocks) < CACHE_TOKENS // BLOCK_TOKENS
        assert len(batch.samplings) == len(stretches)


def test_a_latency_that_is_known_is_found_again() -> None:
    works = [work_of(batch.chunks) for batch in batches(BLOCK_TOKENS)]
    steps = [Measured(work, LATENCY.seconds(work)) for work in works]
    found = fit(steps, "known")
    assert found.prefill == pytest.approx(LATENCY.prefill)
    assert found.decode == pytest.approx(LATENCY.decode)
    assert worst_error(found, steps) == pytest.approx(0, abs=1e-3)


def test_no_figure_is_below_zero_and_the_error_is_told() -> None:
    works = [work_of(batch.chunks) for batch in batches(BLOCK_TOKENS)]
    steps = [Measured(work, 0.01 if work.prefill_squares > 500_000 else 0.02) for work in works]
    found = fit(steps, "longer prompts take less")
    assert min(*found.prefill, *found.decode) >= 0
    assert worst_error(found, steps) > 0.3


def test_a_profile_of_this_machine_is_one_that_a_modelled_engine_takes(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    result = CliRunner().invoke(cli, ["profile", str(tiny("llama")), "--output", str(file), "--dtype", "float32"])
    assert result.exit_code == 0, result.output
    assert f"{file}: fitted to {len(PROMPTS) + len(DECODES)} steps" in result.output
    assert "llama in float32" in find_latency(str(file)).source


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["profile", str(tmp_path), "--output", str(tmp_path / "mine.yaml")])
    assert result.exit_code == 1
    assert "config.json" in result.output
    assert not (tmp_path / "mine.yaml").exists()
