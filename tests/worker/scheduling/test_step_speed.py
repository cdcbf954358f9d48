"""What steps take by what is in them: exact where they follow the formula, unknown where too little was seen."""

from dataclasses import replace

import pytest

from livescale.services.worker.scheduling.limits import SLO_SHARE, SchedulerLimits
from livescale.services.worker.scheduling.rates import StepFit
from livescale.shared.messages.membership import StepSpeed

STEP, ROW, BESIDE, RATE = 0.0115, 0.00013, 0.004, 14_000.0
DECODES = [(0, 4), (0, 9), (0, 20)]
LIMITS = SchedulerLimits(
    max_num_seqs=16,
    max_num_batched_tokens=512,
    max_model_len=4_096,
    vocab_size=99,
    kv_blocks=9_999,
    kv_block_tokens=16,
    tbt_ratio=2.0,
)


def seconds(prompts: int, decodes: int) -> float:
    return prompts / RATE if not decodes else STEP + ROW * decodes + (BESIDE if prompts else 0.0)


def learned(*steps: tuple[int, int]) -> StepFit:
    fit = StepFit()
    for prompts, decodes in steps:
        fit.observe(prompts, decodes, seconds(prompts, decodes))
    return fit


def found(fit: StepFit, prefill_rate: float | None = None, limits: SchedulerLimits = LIMITS) -> StepSpeed:
    speed = fit.speed(limits, prefill_rate)
    assert speed is not None
    return speed


def test_steps_of_several_sizes_tell_what_each_part_takes() -> None:
    speed = found(learned(*DECODES, (140, 5), (140, 12), (512, 0), (90, 0)))
    assert (speed.step_seconds, speed.row_seconds) == pytest.approx((STEP, ROW))
    assert speed.prompt_tokens_per_second == pytest.approx(RATE)
    assert (speed.beside_tokens, speed.beside_seconds) == pytest.approx((140, BESIDE))


def test_steps_of_one_size_say_nothing_of_others() -> None:
    assert learned().speed(LIMITS, 10_000.0) is None
    assert learned((0, 7), (0, 7), (512, 0), (140, 7)).speed(LIMITS, 10_000.0) is None


def test_until_prompts_ran_alone_they_are_as_fast_as_those_beside_decodes() -> None:
    fit = learned(*DECODES, (140, 5))
    assert found(fit, 9_000.0).prompt_tokens_per_second == 9_000
    assert fit.speed(LIMITS, None) is None


def test_until_they_ran_beside_decodes_the_ratio_says_how_many_do() -> None:
    fit = learned(*DECODES, (512, 0))
    speed = found(fit)
    assert (speed.beside_tokens, speed.beside_seconds) == pytest.approx((STEP * RATE, STEP))
    fit = learned(*[(0, rows) for _, rows in DECODES for _ in range(9)], (512, 0))
    fit.observe(0, 20, 3.0)  # a step so long that prompts beside it are limited by rows alone
    assert found(fit).beside_tokens <= 512


def test_until_they_ran_beside_decodes_an_slo_says_how_many_do() -> None:
    speed = found(learned(*DECODES, (512, 0)), limits=replace(LIMITS, tbt_slo=(STEP + 0.02) / SLO_SHARE))
    assert (speed.beside_tokens, speed.beside_seconds) == pytest.approx((0.02 * RATE, 0.02))


def test_later_steps_count_for_more() -> None:
    fit = learned(*DECODES, (512, 0))
    for _ in range(500):
        for rows in (4, 9, 20):
            fit.observe(0, rows, 2 * seconds(0, rows))
    assert found(fit).step_seconds == pytest.approx(2 * STEP, rel=0.01)


def test_noise_never_makes_anything_take_less_than_no_time() -> None:
    fit = StepFit()
    for rows, took in ((4, 0.02), (9, 0.01)):
        fit.observe(0, rows, took)
    fit.observe(64, 5, 0.001)
    speed = found(fit, 10_000.0)
    assert (speed.row_seconds, speed.beside_seconds) == (0, 0)
    assert speed.step_seconds == pytest.approx(0.015, rel=0.01)
