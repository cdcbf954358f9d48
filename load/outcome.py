"""The outcome of a load: everything that its report is made from."""

from collections.abc import Sequence

import msgspec

from livescale.load.hardware import Hardware
from livescale.load.incidents import RunIncident
from livescale.load.records import RequestRecord, find_fault
from livescale.load.stats import Period, Summary, summarise_periods
from livescale.load.story import Newcomer, Story

NOTHING_ADDED = (
    "But no instance was scaled out, so live scaling was not shown: one instance was enough for this load. "
    "Send more requests, with --rate-scale or --duration."
)


class StreamsVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the check of every stream found. `criterion` says in words what counts as right. `again`: how many requests
    were asked a second time, undisturbed, and `changed` what of these had other tokens."""

    streams: int
    faults: list[str]
    tokens: int
    wrong: list[str]
    ties: int
    ties_allowed: int
    criterion: str
    again: int = 0
    changed: list[str] = []

    @property
    def good(self) -> bool:
        is_right = not self.wrong and not self.changed and self.ties <= self.ties_allowed
        return self.streams > 0 and not self.faults and is_right

    def sentence(self) -> str:
        ties = f"{self.ties} ties ({self.ties_allowed} allowed)"
        if self.good:
            again = f" {self.again} of them, asked again undisturbed, had the same tokens." if self.again else ""
            return f"Every stream was complete and right: {self.streams} streams, {self.tokens} tokens, {ties}.{again}"
        if not self.streams:
            return "No stream was sent, so nothing was shown."
        return (
            f"Not every stream was complete and right: of {self.streams}, {len(self.faults)} were not complete; "
            f"of {self.tokens} tokens, {len(self.wrong)} were wrong, {ties}; of {self.again} asked again undisturbed, "
            f"{len(self.changed)} had other tokens."
        )


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds since the epoch; `settings` are printed as they are. `prefill_seconds`: of a mean prompt, at one
    worker that does nothing else."""

    start: float
    end: float
    periods: Sequence[Period]
    records: Sequence[RequestRecord]
    story: Story
    verdict: StreamsVerdict
    hardware: Hardware
    incidents: Sequence[RunIncident]
    prefill_seconds: float
    settings: dict[str, str]

    def summaries(self) -> list[Summary]:
        """A row a period; a trace may begin or end with its burst."""
        return summarise_periods([period for period in self.periods if period.start < period.end], self.records)

    @property
    def scaled_out(self) -> bool:
        """Whether an instance that the load brought came to serve."""
        return any(newcomer.serving_at is not None for newcomer in self.newcomers())

    @property
    def good(self) -> bool:
        """Whether all tokens are right and the load brought an instance: right tokens alone show nothing."""
        return self.verdict.good and self.scaled_out

    def sentence(self) -> str:
        none = "" if self.scaled_out else f" {NOTHING_ADDED}"
        return self.verdict.sentence() + none

    def newcomers(self) -> list[Newcomer]:
        """The instances that were added during the load."""
        return self.story.newcomers(self.start)


def find_faults(records: Sequence[RequestRecord], asked: int) -> list[str]:
    """One line for each request that was not complete, those that never ended included."""
    faults = [f"request {record.index}: {fault}" for record in records if (fault := find_fault(record))]
    return faults + ["a request never ended"] * (asked - len(records))
