"""Counts of a load while it runs, for whoever shows its progress."""

from collections import deque

from livescale.load.records import RequestRecord, find_fault
from livescale.load.stats import percentile

RECENT_SECONDS = 5.0


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
