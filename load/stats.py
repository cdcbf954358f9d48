"""Latency and throughput of requests: counted while they run, summarised when they have ended, and as a table."""

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from livescale.load.records import RequestRecord, find_fault

RECENT_SECONDS = 5.0


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


class Tally:
    """Requests and tokens so far, and the latency of the last seconds."""

    def __init__(self) -> None:
        self.sent = 0
        self.ended = 0
        self.failed = 0
        self.tokens = 0
        self._ttft: deque[tuple[float, float]] = deque()
        self._tbt: deque[tuple[float, float]] = deque()

    @property
    def running(self) -> int:
        return self.sent - self.ended

    def on_sent(self) -> None:
        self.sent += 1

    def on_token(self, at: float, waited: float, first: bool) -> None:
        """A token came at `at`, `waited` seconds after the one before, or after its request was due."""
        self.tokens += 1
        (self._ttft if first else self._tbt).append((at, waited))

    def on_end(self, record: RequestRecord) -> None:
        self.ended += 1
        self.failed += find_fault(record) is not None

    def recent(self, now: float) -> tuple[float | None, float | None]:
        """Median TTFT and TBT of the last five seconds; None where no token came."""
        for kept in (self._ttft, self._tbt):
            while kept and kept[0][0] < now - RECENT_SECONDS:
                kept.popleft()
        return percentile([s for _, s in self._ttft], 50), percentile([s for _, s in self._tbt], 50)


def new_table(title: str) -> Table:
    """An empty table that fits into 80 columns."""
    return Table(
        title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1)
    )


def latency_table(rows: Sequence[Summary], title: str) -> Table:
    table = new_table(title)
    table.add_column("", no_wrap=True)
    for heading in ("requests", "failed", "req/s", "tokens/s", "TTFT p50", "p99", "TBT p50", "p99"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            str(row.requests),
            str(row.failed),
            f"{row.requests_per_second:.1f}",
            f"{row.tokens_per_second:.0f}",
            *map(duration, (row.ttft_p50, row.ttft_p99, row.tbt_p50, row.tbt_p99)),
        )
    return table


def duration(seconds: float | None) -> str:
    """Three digits and a unit; a dash for what was not measured."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
