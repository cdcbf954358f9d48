"""Everything a finished load is reported from."""

from collections.abc import Sequence

import msgspec

from load.records import RequestRecord, find_fault
from load.stats import Period, Summary, summarise_periods
from load.story import Newcomer, Story


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the check of every stream found. `criterion` says in words what counts as right."""

    streams: int
    faults: list[str]
    tokens: int
    wrong: list[str]
    ties: int
    ties_allowed: int
    criterion: str

    @property
    def good(self) -> bool:
        return self.streams > 0 and not self.faults and not self.wrong and self.ties <= self.ties_allowed

    def sentence(self) -> str:
        ties = f"{self.ties} ties ({self.ties_allowed} allowed)"
        if self.good:
            return f"Every stream was complete and right: {self.streams} streams, {self.tokens} tokens, {ties}."
        if not self.streams:
            return "No stream was sent, so nothing was shown."
        return (
            f"Not every stream was complete and right: of {self.streams}, {len(self.faults)} were not complete; "
            f"of {self.tokens} tokens, {len(self.wrong)} were wrong, {ties}."
        )


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds since the epoch; `settings` are printed as they are."""

    start: float
    end: float
    periods: Sequence[Period]
    records: Sequence[RequestRecord]
    story: Story
    verdict: Verdict
    settings: dict[str, str]

    def summaries(self) -> list[Summary]:
        """A row a period; a trace may begin or end with its burst."""
        return summarise_periods([period for period in self.periods if period.start < period.end], self.records)

    def newcomers(self) -> list[Newcomer]:
        """Instances that the load itself brought."""
        return self.story.newcomers(self.start)


def find_faults(records: Sequence[RequestRecord], asked: int) -> list[str]:
    """One line for each request that was not complete, those that never ended included."""
    faults = [f"request {record.index}: {fault}" for record in records if (fault := find_fault(record))]
    return faults + ["a request never ended"] * (asked - len(records))
