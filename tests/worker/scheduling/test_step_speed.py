"""What steps take by what is in them: exact where they follow the formula, unknown where too little was seen."""

import pytest

from livescale.services.worker.scheduling.step_speed import StepFit

STEP, ROW, TOKEN, SAVED = 0.0115, 0.00013, 0.00007, 0.006


def seconds(prompts: int, decodes: int) -> float:
    return STEP + ROW * decodes + (TOKEN * prompts - SAVED if prompts else 0.0)


def learned(*steps: tuple[int, int]) -> StepFit:
    fit = StepFit()
    for prompts, decodes in steps:
        fit.observe(prompts, decodes, seconds(prompts, decodes))
    return fit


def test_steps_of_several_sizes_tell_what_each_part_takes() -> None:
    speed = learned((0, 4), (0, 9), (0, 20), (256, 5), (512, 0), (2_000, 9)).speed(1.85, None)
    assert speed is not None
    found = (speed.step_seconds, speed.row_seconds, speed.token_seconds, speed.saved_seconds)
    assert found == pytest.approx((STEP, ROW, TOKEN, SAVED))
    assert speed.tbt_ratio == 1.85


def test_steps_of_one_size_say_nothing_of_others() -> None:
    assert learned().speed(1.85, 10_000.0) is None
    assert learned((0, 7), (0, 7), (512, 7)).speed(1.85, 10_000.0) is None


def test_until_prompts_of_several_lengths_ran_they_count_by_the_rate_of_prefill() -> None:
    fit = learned((0, 4), (0, 9), (512, 4))
    speed = fit.speed(1.85, 10_000.0)
    assert speed is not None
    assert (speed.token_seconds, speed.saved_seconds) == (1e-4, 0.0)
    assert fit.speed(1.85, None) is None


def test_few_rows_of_prompts_are_left_out() -> None:
    fit = learned((0, 4), (0, 9), (256, 5), (1_000, 5))
    before = fit.speed(1.85, None)
    fit.observe(64, 5, seconds(0, 5))  # a GPU computes these in no time
    assert fit.speed(1.85, None) == before


def test_later_steps_count_for_more() -> None:
    fit = learned(*[(0, rows) for rows in (4, 9, 20)], *[(512, 4), (1_000, 4)])
    for _ in range(500):
        for rows in (4, 9, 20):
            fit.observe(0, rows, 2 * seconds(0, rows))
    speed = fit.speed(1.85, None)
    assert speed is not None
    assert speed.step_seconds == pytest.approx(2 * STEP, rel=0.01)


def test_noise_never_makes_anything_take_less_than_no_time() -> None:
    fit = StepFit()
    for rows, took in ((4, 0.02), (9, 0.01)):
        fit.observe(0, rows, took)
    for rows, took in ((256, 0.05), (512, 0.03)):
        fit.observe(rows, 0, took)
    speed = fit.speed(1.85, 10_000.0)
    assert speed is not None
    assert speed.row_seconds == 0
    assert speed.step_seconds == pytest.approx(0.015, rel=0.01)
    assert (speed.token_seconds, speed.saved_seconds) == (1e-4, 0.0)
