"""Measured rates: unknown until measured, prefill and decode apart."""

from collections.abc import Callable

import pytest
from msgspec import structs

from livescale.services.worker.scheduling.batch import Batch, LayerEntry, ScheduledChunk, TokenSampling
from livescale.services.worker.scheduling.limits import SLO_SHARE
from livescale.services.worker.scheduling.rates import (
    FIRST_ROWS,
    STEPS_BESIDE,
    DecodePace,
    EngineRates,
    layers_share,
)
from livescale.shared.messages.requests import Sampling
from tests.worker.requests import limits

TWICE = limits(tbt_ratio=2.0)


def on_a_core(prompts: int, decodes: int) -> float:
    """Seconds of a step of a model of 120M parameters on a core."""
    return 0.01 + 0.00045 * prompts + 0.0005 * decodes


def on_a_gpu(prompts: int, decodes: int) -> float:
    """Seconds of a step of an 8B model on an A100."""
    return max(0.0055 + 0.0000676 * prompts, 0.0115) + 0.00003 * decodes


def _batch(prefill: int, decode: int) -> Batch:
    chunk = (ScheduledChunk("p", (1,) * prefill, 0, range(8), decode=False),) if prefill else ()
    return Batch(1, (*chunk, *(ScheduledChunk(f"d{row}", (1,), 5, range(8), decode=True) for row in range(decode))))


def drawing(rows: int) -> list[ScheduledChunk]:
    """The chunks of so many requests that each gain a token."""
    return [structs.replace(chunk, sampling=TokenSampling(Sampling(), 0)) for chunk in _batch(0, rows).chunks]


def test_rates_are_unknown_until_measured() -> None:
    rates = EngineRates()
    assert rates.prefill_tokens_per_second is None
    rates.observe(_batch(100, 0), 0.5)
    assert rates.prefill_tokens_per_second == 200
    assert rates.decode_tokens_per_second is None


def test_decodes_that_ride_along_count_as_prefill() -> None:
    rates = EngineRates()
    rates.observe(_batch(96, 4), 0.5)
    assert rates.prefill_tokens_per_second == 200
    assert rates.decode_tokens_per_second is None


def test_a_step_that_is_half_and_half_says_nothing() -> None:
    rates = EngineRates()
    rates.observe(_batch(8, 8), 0.5)
    assert (rates.prefill_tokens_per_second, rates.decode_tokens_per_second) == (None, None)


def test_the_average_follows_what_changes() -> None:
    rates = EngineRates()
    for seconds in [0.1] * 50 + [0.2] * 50:
        rates.observe(_batch(0, 10), seconds)
    assert rates.decode_tokens_per_second is not None
    assert abs(rates.decode_tokens_per_second - 50) < 1


def test_what_parts_of_a_model_took_tells_of_the_whole() -> None:
    rates = EngineRates()
    rates.observe_part(_batch(100, 0).chunks, layers_share(range(0, 3), 8), 0.5)
    assert rates.part_tokens_per_second == 100 * 2 / 8 / 0.5
    assert rates.prefill_tokens_per_second is None


def test_parts_tell_how_long_decodes_of_the_whole_take_alone_and_beside_prompts() -> None:
    rates = EngineRates()
    rates.observe_part(_batch(100, 0).chunks, 0.25, 0.1 / 4)
    rates.observe_part(drawing(8), 0.25, 0.02 / 4)
    assert rates.pace.prompt_rows(8, TWICE) == pytest.approx(20)
    rates.observe_part([*_batch(32, 0).chunks, *drawing(8)], 0.25, 0.1 / 4)
    assert rates.pace.prompt_rows(8, TWICE) == pytest.approx(20 / 2.5), "32 rows added 80 ms"


def test_positions_that_are_computed_again_say_nothing_of_what_decodes_take() -> None:
    rates = EngineRates()
    rates.observe_part(_batch(0, 8).chunks, 0.5, 0.01)
    rates.observe_part(_batch(100, 8).chunks, 0.5, 0.01)
    assert rates.pace.prompt_rows(8, TWICE) == FIRST_ROWS
    assert not rates.pace.is_stale


def test_parts_without_layers_and_steps_without_prompts_say_nothing_of_prefill() -> None:
    rates = EngineRates()
    rates.observe_part(_batch(100, 0).chunks, layers_share(range(9, 10), 8), 0.5)
    rates.observe_part(_batch(0, 8).chunks, 0.5, 0.1)
    assert rates.part_tokens_per_second is None


def test_rows_of_prompts_beside_decodes_follow_from_what_both_take() -> None:
    pace = DecodePace()
    pace.observe(100, 0, 0.1)
    pace.observe(0, 8, 0.02)
    assert pace.prompt_rows(8, TWICE) == pytest.approx(20)
    assert pace.prompt_rows(8, limits(tbt_ratio=1.5)) == pytest.approx(10)
    assert pace.prompt_rows(16, TWICE) == pytest.approx(20), "more decodes take as long at least"
    assert pace.prompt_rows(4, TWICE) == pytest.approx(10), "fewer may take less"


def test_with_an_slo_prompts_get_what_decodes_leave_of_it() -> None:
    pace = DecodePace()
    pace.observe(100, 0, 0.1)
    pace.observe(0, 8, 0.02)
    paced = limits(tbt_slo=0.15 / SLO_SHARE)
    assert [pace.prompt_rows(rows, paced) for rows in (4, 8)] == pytest.approx([140, 130])
    assert pace.prompt_rows(8, limits(tbt_slo=0.01)) == 0, "they are late by themselves"


def test_what_prompts_add_is_learned_beside_decodes() -> None:
    pace = DecodePace()
    pace.observe(100, 0, 0.1)
    pace.observe(0, 8, 0.02)
    for _ in range(100):
        pace.observe(32, 8, 0.02 + 32 * 0.002)
        pace.observe(0, 8, 0.02)
    assert pace.prompt_rows(8, TWICE) == pytest.approx(10, rel=0.01)


def test_a_step_that_takes_longer_once_hardly_counts_and_one_that_always_does_is_learned() -> None:
    pace = DecodePace()
    pace.observe(100, 0, 0.1)
    pace.observe(0, 8, 0.020)
    pace.observe(0, 8, 0.024)
    assert pace.prompt_rows(8, TWICE) == pytest.approx(20.5), "single ones among prompts find caches cold"
    for _ in range(30):
        pace.observe(0, 8, 0.024)
    assert pace.prompt_rows(8, TWICE) == pytest.approx(24, rel=0.01)
    pace.observe(0, 8, 0.020)
    assert pace.prompt_rows(8, TWICE) == pytest.approx(22, rel=0.01), "what they can do counts half at once"
    pace.observe(0, 16, 0.060)
    assert pace.prompt_rows(16, TWICE) > 40, "of more decodes nothing was known"


def test_decodes_that_were_never_seen_alone_are_to_be_after_a_step_with_prompts() -> None:
    pace = DecodePace()
    assert not pace.is_stale
    pace.observe(100, 8, 0.1)
    assert pace.is_stale
    pace.observe(0, 8, 0.02)
    assert not pace.is_stale
    assert pace.prompt_rows(8, TWICE) == FIRST_ROWS, "of prompts nothing is known"


def test_a_few_rows_that_add_nothing_do_not_say_that_many_would() -> None:
    pace = DecodePace()
    pace.observe(100, 0, 0.1)
    for _ in range(100):
        pace.observe(0, 8, 0.02)
        pace.observe(8, 8, 0.02)
    assert pace.prompt_rows(8, TWICE) == pytest.approx(8 + 20), "the others as if they ran alone"


def test_where_every_step_takes_some_time_prompts_fill_it_before_they_hold_decodes_up() -> None:
    pace = DecodePace()
    pace.observe(2_048, 0, on_a_gpu(2_048, 0))
    pace.observe(0, 32, on_a_gpu(0, 32))
    for _ in range(30):
        rows = int(pace.prompt_rows(32, limits()))
        assert on_a_gpu(rows, 32) <= 1.85 * on_a_gpu(0, 32), "not even once"
        pace.observe(rows, 32, on_a_gpu(rows, 32))
    assert on_a_gpu(rows, 32) >= 1.84 * on_a_gpu(0, 32)


@pytest.mark.parametrize(("seconds", "most"), [(on_a_core, 1.85), (on_a_gpu, 2.4)])
def test_the_first_prompts_where_there_were_only_decodes_hold_them_up_hardly_longer_than_later_ones(
    seconds: Callable[[int, int], float], most: float
) -> None:
    pace = DecodePace()
    pace.observe(0, 8, seconds(0, 8))
    for _ in range(30):
        rows = int(pace.prompt_rows(8, limits()))
        assert seconds(rows, 8) <= most * seconds(0, 8)
        pace.observe(rows, 8, seconds(rows, 8))
    assert seconds(rows, 8) >= 1.75 * seconds(0, 8), "and soon get as much as they may"


def test_short_ends_of_prompts_hide_nothing_of_what_many_rows_add() -> None:
    pace = DecodePace()
    pace.observe(1_000, 0, 1.0)
    pace.observe(0, 8, 0.1)
    for _ in range(30):
        pace.observe(200, 8, 0.2)
        pace.observe(2, 8, 0.1)
    assert pace.prompt_rows(8, TWICE) == pytest.approx(200, rel=0.02)


def entering(batch: Batch) -> Batch:
    """The batch with rows of prompts that enter at a later layer."""
    entry = LayerEntry(3, 100, memoryview(b""), 0.5)
    chunks = [chunk if chunk.decode else structs.replace(chunk, entry=entry) for chunk in batch.chunks]
    return structs.replace(batch, chunks=tuple(chunks))


def test_decodes_are_to_be_seen_alone_also_where_all_that_runs_beside_them_enters_later() -> None:
    rates = EngineRates()
    rates.observe(entering(_batch(100, 0)), 0.05)
    assert not rates.pace.is_stale
    rates.observe(entering(_batch(100, 8)), 0.05)
    assert rates.pace.is_stale
    rates.observe(_batch(0, 8), 0.02)
    for _ in range(STEPS_BESIDE):
        assert not rates.pace.is_stale
        rates.observe(entering(_batch(8, 8)), 0.03)
    assert rates.pace.is_stale
    assert rates.prefill_tokens_per_second is None


def test_what_one_layer_took_tells_how_long_prompts_take() -> None:
    rates = EngineRates()
    rates.observe_layer(100, 4, 0.1 / 4)
    rates.observe(_batch(0, 8), 0.02)
    assert rates.pace.prompt_rows(8, TWICE) == pytest.approx(20)
