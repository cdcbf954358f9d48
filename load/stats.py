"""Latency and throughput of a set of requests."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from livescale.load.records import RequestRecord, find_fault


class Summary(msgspec.Struct, frozen=True):
    """One row of the table. Latencies in seconds, None where nothing was measured."""

    name: str
    requests: int
    failed: int
    requests_per_second: float
    tokens_per_second: float
    ttft_p50: float | None
    ttft_p99: float | None
    tbt_p50: float | None
    tbt_p99: float | None


class Period(msgspec.Struct, frozen=True):
    """A named stretch of time, start <= t < end, in seconds since the epoch."""

    name: str
    start: float
    end: float


def percentile(values: Sequence[float], q: float) -> float | None:
    """The q-th percentile (0-100), interpolated; None of nothing."""
    return float(np.percentile(values, q)) if values else None


def summarise(name: str, records: Iterable[RequestRecord], seconds: float) -> Summary:
    """Rates are over `seconds`, the time in which the requests were due."""
    chosen = list(records)
    # Latencies are of all tokens that came, also in streams that failed later: leaving those out would flatter.
    good = [record for record in chosen if find_fault(record) is None]
    ttft = [record.ttft for record in chosen if record.ttft is not None]
    gaps = [gap for record in chosen for gap in record.gaps]
    return Summary(
        name=name,
        requests=len(chosen),
        failed=len(chosen) - len(good),
        requests_per_second=len(good) / seconds,
        tokens_per_second=sum(len(record.token_ids) for record in chosen) / seconds,
        ttft_p50=percentile(ttft, 50),
        ttft_p99=percentile(ttft, 99),
        tbt_p50=percentile(gaps, 50),
        tbt_p99=percentile(gaps, 99),
    )


def summarise_periods(periods: Sequence[Period], records: Sequence[RequestRecord]) -> list[Summary]:
    """A row a period; a request belongs to the period in which it was due."""
    return [
        summarise(
            period.name,
            (record for record in records if period.start <= record.due < period.end),
            period.end - period.start,
        )
        for period in periods
    ]
