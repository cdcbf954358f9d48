"""What a run with faults came to: pure, from records and the undisturbed tokens."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec
from rich.table import Table

from load.chaos.faults import Happening
from load.records import RequestRecord, find_fault
from load.tables import duration, new_table


class ChaosReport(msgspec.Struct, frozen=True, kw_only=True):
    """`refused` requests were told to come again before they were served; `resumed` counts submissions after a loss.

    `wrong_tokens` differ from an undisturbed run; `lost_tokens` were asked for and did not come. Pauses in seconds:
    between two tokens of a stream, and from a request's being due to its first token.
    """

    seed: int
    dtype: str
    seconds: float
    faults: int
    streams: int
    tokens: int
    resumed: int
    refused: int
    longest_pause: float
    longest_first: float
    wrong_tokens: int
    lost_tokens: int
    incomplete: list[str]

    @property
    def good(self) -> bool:
        """Whether every stream was complete and equal to the undisturbed one."""
        return not self.incomplete and not self.wrong_tokens and not self.lost_tokens


def make_report(
    *,
    seed: int,
    dtype: str,
    seconds: float,
    happenings: Sequence[Happening],
    records: Sequence[RequestRecord],
    undisturbed: Mapping[int, Sequence[int]],
    resumed: int,
    refused: int,
) -> ChaosReport:
    """Judge every request that was asked for: one without a record is incomplete as well."""
    by_index = {record.index: record for record in records}
    missing = [f"request {index}: no record of it" for index in undisturbed if index not in by_index]
    faults = [f"request {record.index}: {fault}" for record in records if (fault := find_fault(record))]
    came = {index: record.token_ids for index, record in by_index.items()}
    return ChaosReport(
        seed=seed,
        dtype=dtype,
        seconds=round(seconds, 1),
        faults=len(happenings),
        streams=len(undisturbed),
        tokens=sum(map(len, came.values())),
        resumed=resumed,
        refused=refused,
        longest_pause=round(max((gap for record in records for gap in record.gaps), default=0.0), 3),
        longest_first=round(max((record.ttft or 0.0 for record in records), default=0.0), 3),
        wrong_tokens=sum(count_wrong(came.get(index, []), right) for index, right in undisturbed.items()),
        lost_tokens=sum(max(0, len(right) - len(came.get(index, []))) for index, right in undisturbed.items()),
        incomplete=sorted(faults + missing),
    )


def count_wrong(came: Sequence[int], right: Sequence[int]) -> int:
    """Tokens that are not what the undisturbed run has at their place, those beyond its end included."""
    return sum(one != other for one, other in zip(came, right, strict=False)) + max(0, len(came) - len(right))


def fault_table(happenings: Sequence[Happening], records: Sequence[RequestRecord], start: float, end: float) -> Table:
    """A row a fault, with what clients noticed from it until the next."""
    table = new_table("Faults, and the longest pause of any stream until the next one")
    for heading, justify in (("at", "right"), ("fault", "left"), ("streams", "right"), ("pause", "right")):
        table.add_column(heading, justify="right" if justify == "right" else "left", no_wrap=justify == "right")
    ordered = sorted(happenings, key=lambda one: one.at)
    for happening, until in zip(ordered, [*(one.at for one in ordered[1:]), end], strict=True):
        under_way = [record for record in records if record.sent <= happening.at <= record.ended]
        longest = max((pause_within(record, happening.at, until) for record in under_way), default=0.0)
        what = f"{happening.fault}{': ' if happening.note else ''}{happening.note}"
        table.add_row(duration(happening.at - start), what, str(len(under_way)), duration(longest))
    return table


def pause_within(record: RequestRecord, start: float, end: float) -> float:
    """The longest wait for a token that overlaps this stretch."""
    return max((after - before for before, after in _waits(record) if before < end and after > start), default=0.0)


def _waits(record: RequestRecord) -> Iterator[tuple[float, float]]:
    return pairwise([record.due, *record.token_at])
