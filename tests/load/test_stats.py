"""Percentiles, rates and series."""

import msgspec
import pytest

from livescale.load.outcome import find_faults
from livescale.load.pictures import gap_points, rate_of, running_percentile, ttft_points
from livescale.load.records import find_fault
from livescale.load.stats import Period, duration, percentile, summarise, summarise_periods
from tests.load import happenings
from tests.load.happenings import START, record


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
    outcome = msgspec.structs.replace(happenings.outcome(), periods=periods)
    assert [row.name for row in outcome.summaries()] == ["burst", "after"]


def test_nothing_measured_is_a_dash_not_a_zero() -> None:
    row = summarise("empty", [], 10.0)
    assert (row.requests, row.ttft_p50, row.tbt_p99) == (0, None, None)
    assert [duration(value) for value in (None, 0.0312, 1.234)] == ["-", "31 ms", "1.23 s"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"error": "worker lost"}, "worker lost"),
        ({"token_ids": [1]}, "1 of 8 tokens came"),
        ({"token_ids": []}, "no token ids came: the server does not know return_token_ids"),
        ({"finish_reason": "stop"}, "finish reason 'stop' instead of 'length'"),
        ({"finish_reason": None}, "finish reason None instead of 'length'"),
    ],
)
def test_a_fault_is_named(change: dict[str, object], fault: str | None) -> None:
    assert find_fault(msgspec.structs.replace(record(0, 0.0), **change)) == fault


def test_requests_that_never_ended_are_faults_too() -> None:
    assert find_faults([record(0, 0.0)], asked=3) == ["a request never ended"] * 2


def test_rates_are_counted_by_stretches_of_time() -> None:
    assert rate_of([START + 0.1, START + 0.9, START + 2.5], START, START + 3, width=1.0) == [
        (0.5, 2.0),
        (1.5, 0.0),
        (2.5, 1.0),
    ]


def test_points_carry_time_and_latency() -> None:
    records = [record(0, 2.0, ttft=0.5, gap=0.1, tokens=3)]
    assert ttft_points(records, START) == [(2.0, pytest.approx(0.5))]
    assert gap_points(records, START) == [
        (pytest.approx(2.6), pytest.approx(0.1, abs=1e-5)),
        (pytest.approx(2.7), pytest.approx(0.1, abs=1e-5)),
    ]
    assert running_percentile([(0.1, 1.0), (1.9, 3.0), (4.5, 7.0)], 50) == [(1.0, 2.0), (5.0, 7.0)]
