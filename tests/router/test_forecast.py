"""Forecasts: what follows from the rates alone comes out of them, and where each way wins."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from livescale.services.router.forecast import TTFT_A_TOKEN, EngineSpeed, PastRequest, Slos, attainment

SPEED = EngineSpeed(
    prefill=10_000.0, step=0.010, row=0.001, beside_tokens=110.0, beside_seconds=0.011, slots=99, kv_tokens=999_999
)


def steady(count: int, rate: float, prompt: int, output: int) -> list[PastRequest]:
    return [PastRequest(number / rate, prompt, output) for number in range(count)]


def share(requests: list[PastRequest], ttft: float, tbt: float, prefill: int, others: int) -> float:
    return attainment(requests, SPEED, Slos(ttft, tbt), prefill, others)


@pytest.mark.parametrize(("prefill", "others"), [(0, 1), (0, 4), (1, 1), (3, 1)])
def test_a_lone_request_takes_its_prompt_and_its_steps(prefill: int, others: int) -> None:
    alone = [PastRequest(5.0, 1_000, 11)]
    first = 0.1 - 1_000 * TTFT_A_TOKEN
    assert share(alone, first + 0.001, 0.0111, prefill, others) == 1
    assert share(alone, first - 0.001, 0.0111, prefill, others) == 0
    assert share(alone, first + 0.001, 0.0109, prefill, others) == 0


def test_of_a_burst_those_are_late_that_wait_for_others() -> None:
    burst = [PastRequest(0.0, 1_000, 2)] * 4
    assert [share(burst, 0.25, 1.0, prefill, 1) for prefill in (1, 2, 4)] == [0.75, 1, 1]
    assert share(burst, 0.1, 1.0, 2, 1) == 0.5


def test_decodes_share_an_instance() -> None:
    # Five requests decode at once: a token takes 15 ms, or 12.5 ms where two instances have them.
    five = [PastRequest(0.0, 1, 100)] * 5
    assert share(five, 1.0, 0.0151, 5, 1) == 1
    assert share(five, 1.0, 0.0149, 5, 1) == 0
    assert share(five, 1.0, 0.0131, 5, 2) == 1


def test_those_that_find_no_room_to_decode_are_late() -> None:
    five = [PastRequest(0.0, 1, 100)] * 5
    for narrow in (replace(SPEED, slots=3), replace(SPEED, kv_tokens=310)):
        assert attainment(five, narrow, Slos(1.0, 1.0), 5, 1) == 0.6
        assert attainment(five, narrow, Slos(1.0, 1.0), 5, 2) == 1
        assert attainment(five, narrow, Slos(1.0, 1.0), 0, 1) == 1


def test_prompts_beside_decodes_take_as_long_as_the_ratio_allows() -> None:
    # Nine tokens of the first request take 11 ms each, the other 40 twice as long, as the second one's prompt of 1 s is
    # computed beside them: 44 % of it in 0.88 s, and the rest in 0.56 s.
    pair = [PastRequest(0.0, 1, 50), PastRequest(0.1, 10_000, 1)]
    first = 1.44 - 10_000 * TTFT_A_TOKEN
    assert share(pair, first + 0.02, 0.0201, 0, 1) == 1
    assert share(pair, first - 0.02, 0.0201, 0, 1) == 0.5
    assert share(pair, first + 0.02, 0.0198, 0, 1) == 0.5
    assert share(pair, 1.0 - 0.8, 0.0112, 1, 1) == 1


def test_a_request_of_one_token_has_no_pause() -> None:
    assert share([PastRequest(0.0, 1, 1)], 1.0, 1e-9, 1, 1) == 1


def test_a_tight_pace_wants_a_split_and_the_right_one_and_a_loose_one_does_not_need_it() -> None:
    speed = EngineSpeed(
        prefill=14_500.0,
        step=0.0115,
        row=0.000129,
        beside_tokens=150.0,
        beside_seconds=0.004,
        slots=99,
        kv_tokens=999_999,
    )
    requests = steady(400, 20.0, 900, 24)

    def forecast(prefill: int, tbt: float) -> float:
        return attainment(requests, speed, Slos(1.0, tbt), prefill, 3 - prefill)

    assert forecast(2, 0.0125) > 0.9
    assert forecast(1, 0.0125) < 0.5
    assert forecast(0, 0.0125) < 0.5
    assert forecast(0, 0.15) > 0.99


@given(
    some.lists(
        some.tuples(some.floats(0, 0.2), some.integers(1, 3_000), some.integers(1, 60)), min_size=1, max_size=60
    ),
    some.integers(0, 3),
    some.integers(1, 3),
    some.floats(0, 0.02),
)
def test_every_request_ends_and_looser_slos_are_kept_by_no_fewer(
    drawn: list[tuple[float, int, int]], prefill: int, others: int, beside: float
) -> None:
    requests, now = list[PastRequest](), 0.0
    for gap, prompt, output in drawn:
        now += gap
        requests.append(PastRequest(now, prompt, output))
    speed = replace(SPEED, beside_seconds=beside)
    found = [attainment(requests, speed, Slos(slo, slo / 10), prefill, others) for slo in (0.1, 0.2, 1e6)]
    assert found == sorted(found)
    assert found[-1] == 1
