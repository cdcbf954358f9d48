"""`livescale profile`: what is measured, what is made of it, and that a modelled engine takes it."""

import pytest

from livescale.load.profile.measure import CACHE_TOKENS, DECODES, PROMPTS, MeasuredStep, batches, fit, worst_error
from livescale.services.worker.engine.modelled_steps import work_of
from livescale.services.worker.scheduling.batch import MAX_BATCH_ROWS
from livescale.shared.model.latency import Latency

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
    steps = [MeasuredStep(work, LATENCY.seconds(work)) for work in works]
    found = fit(steps, "known")
    assert found.prefill == pytest.approx(LATENCY.prefill)
    assert found.decode == pytest.approx(LATENCY.decode)
    assert worst_error(found, steps) == pytest.approx(0, abs=1e-3)


def test_no_figure_is_below_zero_and_the_error_is_told() -> None:
    works = [work_of(batch.chunks) for batch in batches(BLOCK_TOKENS)]
    steps = [MeasuredStep(work, 0.01 if work.prefill_squares > 500_000 else 0.02) for work in works]
    found = fit(steps, "longer prompts take less")
    assert min(*found.prefill, *found.decode) >= 0
    assert worst_error(found, steps) > 0.3
