"""Limits of a key: what is let through, when the rest would fit, and how that is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway.rate_limits import MINUTE, Bucket, KeyLimits, OverLimit, Quota, duration

steps = st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50)), max_size=60)


@given(per_minute=st.integers(1, 1000), steps=steps)
def test_no_minute_sees_more_than_two_buckets(per_minute: int, steps: list[tuple[float, int]]) -> None:
    bucket, now, taken = Bucket(per_minute), 0.0, []
    for pause, amount in steps:
        now += pause
        if amount <= per_minute and bucket.seconds_until(amount, now) == 0:
            bucket.take(amount, now)
            taken.append((now, amount))
        assert -1e-3 <= bucket.level(now) <= per_minute
    for start, _ in taken:
        assert sum(amount for at, amount in taken if start <= at < start + MINUTE) <= 2 * per_minute + 1


@given(per_minute=st.integers(1, 1000), steps=steps, amount=st.integers(1, 2000))
def test_what_is_told_to_wait_fits_after_that_time(
    per_minute: int, steps: list[tuple[float, int]], amount: int
) -> None:
    bucket, now = Bucket(per_minute), 0.0
    for pause, used in steps:
        now += pause
        bucket.take(used, now)
    later = now + bucket.seconds_until(amount, now)
    assert bucket.seconds_until(amount, later) == pytest.approx(0, abs=1e-3)


@given(reserved=st.integers(1, 500), used=st.integers(0, 500))
def test_a_settled_reservation_costs_what_was_used(reserved: int, used: int) -> None:
    quota = Quota(KeyLimits(tokens_per_minute=1000))
    assert quota.reserve(reserved, 5.0) is None
    quota.settle(reserved, used, 5.0)
    assert quota.headers(5.0)[1] == ("x-ratelimit-remaining-tokens", str(1000 - used))


def test_requests_beyond_the_minute_are_told_when_the_next_one_fits() -> None:
    quota = Quota(KeyLimits(requests_per_minute=2))
    assert [quota.enter(0.0), quota.enter(0.0)] == [None, None]
    assert quota.enter(0.0) == OverLimit("requests", 2, 30.0)
    assert quota.enter(30.0) is None
    assert quota.running == 3


def test_only_so_many_at_once_and_a_refused_one_costs_no_request() -> None:
    quota = Quota(KeyLimits(requests_per_minute=10, max_concurrent=1))
    assert quota.enter(0.0) is None
    over = quota.enter(0.0)
    assert over is not None
    assert (over.what, over.limit) == ("concurrency", 1)
    quota.leave()
    assert quota.enter(0.0) is None
    assert dict(quota.headers(0.0))["x-ratelimit-remaining-requests"] == "8"


def test_a_request_larger_than_the_limit_waits_for_a_full_bucket_and_owes_the_rest() -> None:
    quota = Quota(KeyLimits(tokens_per_minute=60))
    assert quota.reserve(180, 0.0) is None
    assert quota.reserve(1, 0.0) == OverLimit("tokens", 60, 121.0)
    assert dict(quota.headers(0.0)) == {
        "x-ratelimit-limit-tokens": "60",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "3m0s",
    }


def test_without_limits_everything_passes_and_nothing_is_told() -> None:
    quota = Quota(KeyLimits())
    assert quota.enter(0.0) is None
    assert quota.reserve(10**9, 0.0) is None
    assert quota.headers(0.0) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.0001, "1ms"), (0.12, "120ms"), (1, "1s"), (7.66, "7.66s"), (60, "1m0s"), (361.5, "6m1.5s")],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
