"""Percentiles, rates and series."""

import msgspec
import pytest

from livescale.load.stats import Period, duration, percentile, summarise, summarise_periods
from tests.load import sample_run
from tests.load.sample_run import START, record


def test_a_percentile_of_nothing_is_unknown() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0], 99) == 3.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0


def test_a_request_counts_where_it_was_due() -> None:
    records = [record(0, 1.0, ttft=0.2), record(1, 9.9, ttft=5.0), record(2, 10.0, ttft=0.4)]
    before, burst = summarise_periods(
        [Period("before", START, START + 10), Period("burst", START + 10, START + 20)], records
    )
    assert (before.requests, before.failed, before.requests_per_second) == (2, 0, 0.2)
    assert before.tokens_per_second == pytest.approx(1.6)
    assert before.ttft_p50 == pytest.approx(2.6)
    assert burst.ttft_p50 == burst.ttft_p99 == pytest.approx(0.4)
    assert burst.tbt_p50 == pytest.approx(0.02)


def test_a_trace_may_begin_with_its_burst() -> None:
    periods = [
        Period("before", START, START),
        Period("burst", START, START + 9),
        Period("after", START + 9, START + 60),
    ]
    outcome = msgspec.structs.replace(sample_run.outcome(), periods=periods)
    assert [row.name for row in outcome.summaries()] == ["burst", "after"]


def test_nothing_measured_is_a_dash_not_a_zero() -> None:
    row = summarise("empty", [], 10.0)
    assert (row.requests, row.ttft_p50, row.tbt_p99) == (0, None, None)
    assert [duration(value) for value in (None, 0.0312, 1.234)] == ["-", "31 ms", "1.23 s"]
