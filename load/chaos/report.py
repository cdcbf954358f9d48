"""What a run with faults left behind, and the verdict on it: pure, from records and an undisturbed engine's tokens."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec
from rich.table import Table

from livescale.load.chaos.client import CutStream
from livescale.load.chaos.detection import all_seconds, detection_sentence, seconds_to_find
from livescale.load.chaos.faults import SeenFault
from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.stats import duration, new_table
from livescale.load.story import Story

# A connection that was idle when its gateway died is found broken by the next request.
NOTICED_SECONDS = 2.0

FAULT_HEADINGS = ("at", "fault", "streams", "pause", "found")


class ChaosRun(msgspec.Struct, frozen=True, kw_only=True):
    """`start` and `end` of the load, in seconds since the epoch; `left` after the end of the system."""

    asks: list[Ask]
    records: list[RequestRecord]
    cuts: list[CutStream]
    seen_faults: list[SeenFault]
    story: Story
    start: float
    end: float
    refused: int
    resumed: int
    takeovers: int
    handed_over: int
    not_whole: list[str]
    left: list[str] = []

    @property
    def seen(self) -> list[RequestRecord]:
        """The records with the times at which clients had their tokens, from any gateway.

        A token that the client has already does not count when it comes again. The first new token ends a pause that
        began at another gateway.
        """
        cuts: dict[int, list[RequestRecord]] = defaultdict(list)
        for cut in self.cuts:
            cuts[cut.record.index].append(cut.record)
        return [as_seen([*cuts[record.index], record]) for record in self.records]


def as_seen(attempts: Sequence[RequestRecord]) -> RequestRecord:
    """One record from all attempts at a request, which are in order."""
    token_at: list[float] = []
    for attempt in attempts:
        token_at += attempt.token_at[len(token_at) :]
    return msgspec.structs.replace(attempts[-1], due=attempts[0].due, sent=attempts[0].sent, token_at=token_at)


class ChaosReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a chaos run.

    `refused` requests were told to come again before they were served. `resumed` counts submissions after a loss. `cut`
    streams lost the connection to their gateway, and were asked for again at another one. `takeovers` counts routers
    that became active in another's place, `handed_over` requests that an instance took over from one that was still
    loading.

    `faults` counts the faults that took effect, by kind. `wrong_tokens` differ from an undisturbed run; `lost_tokens`
    were asked for and did not come. Pauses are in seconds, between two tokens of a request, and from its due time to
    its first token, over all its gateways. A request whose gateway died begins anew at another one, so its pause lasts
    until all that its client has was made again; `longest_unbroken` is that of the streams that were never cut.
    `stalled` is the seconds for which everything stood still. `kills_found` and `freezes_found` are the seconds from
    each fault until the registry held its victim for dead. `not_whole` lists what was wrong in the end, and `left` what
    was left behind.
    """

    seed: int
    dtype: str
    seconds: float
    faults: dict[str, int]
    streams: int
    tokens: int
    resumed: int
    refused: int
    cut: int
    takeovers: int
    handed_over: int
    scaled_out: int
    scaled_in: int
    longest_pause: float
    longest_unbroken: float
    longest_first: float
    stalled: float
    kills_found: list[float]
    freezes_found: list[float]
    wrong_tokens: int
    lost_tokens: int
    incomplete: list[str]
    not_whole: list[str]
    left: list[str]

    @property
    def good(self) -> bool:
        """Whether every stream was complete and equal to the undisturbed one, and the system whole in the end."""
        return not (self.wrong_tokens or self.lost_tokens or self.complaints())

    def complaints(self) -> list[str]:
        """One line for each thing that is not as it should be, but for tokens."""
        return [
            *self.incomplete,
            *(f"not whole in the end: {line}" for line in self.not_whole),
            *(f"left behind: {line}" for line in self.left),
        ]

    def sentence(self) -> str:
        """The verdict on the run in one sentence, with its counts."""
        verdict = "nothing was wrong or lost" if self.good else "NOT GOOD"
        return (
            f"{self.streams} streams, {self.tokens} tokens under {sum(self.faults.values())} faults: {verdict}. "
            f"{self.wrong_tokens} tokens wrong, {self.lost_tokens} lost; {self.resumed} requests resumed, "
            f"{self.cut} connections lost with their gateway, {self.refused} refused first; "
            f"longest pause {duration(self.longest_pause)}"
            + (f", {duration(self.longest_unbroken)} of streams that were not cut" if self.cut else "")
            + (f", everything stood still for {duration(self.stalled)} in all." if self.stalled else ".")
            + detection_sentence(self.kills_found, self.freezes_found)
        )


def make_report(run: ChaosRun, undisturbed: Mapping[int, Sequence[int]], seed: int, dtype: str) -> ChaosReport:
    """Judge every request that was asked for: one without a record is incomplete as well."""
    by_index = {record.index: record for record in run.records}
    missing = [f"request {index}: no record of it" for index in undisturbed if index not in by_index]
    faults = [f"request {record.index}: {fault}" for record in run.records if (fault := find_fault(record))]
    came = {index: record.token_ids for index, record in by_index.items()}
    scales = [record.decision.action for record in run.story.scales.values() if record.state == "done"]
    wrong = [count_wrong(came.get(index, []), right) for index, right in undisturbed.items()]
    # What came before a connection broke has to be right as well.
    wrong += [count_wrong(cut.record.token_ids, undisturbed[cut.record.index]) for cut in run.cuts]
    seen, cut = run.seen, {one.record.index for one in run.cuts}
    struck = [fault for fault in run.seen_faults if fault.struck]
    return ChaosReport(
        seed=seed,
        dtype=dtype,
        seconds=round(run.end - run.start, 1),
        faults=dict(sorted(Counter(fault.kind for fault in struck).items())),
        streams=len(undisturbed),
        tokens=sum(map(len, came.values())),
        resumed=run.resumed,
        refused=run.refused,
        cut=len(run.cuts),
        takeovers=run.takeovers,
        handed_over=run.handed_over,
        scaled_out=scales.count("out"),
        scaled_in=scales.count("in"),
        longest_pause=longest_gap(seen),
        longest_unbroken=longest_gap(record for record in seen if record.index not in cut),
        longest_first=round(max((record.ttft or 0.0 for record in seen), default=0.0), 3),
        stalled=round(sum(fault.fault.seconds for fault in struck if fault.fault.kind == "stall"), 3),
        kills_found=all_seconds("kill", struck, run.story.deaths),
        freezes_found=all_seconds("freeze", struck, run.story.deaths),
        wrong_tokens=sum(wrong),
        lost_tokens=sum(max(0, len(right) - len(came.get(index, []))) for index, right in undisturbed.items()),
        incomplete=sorted(faults + missing + find_unexplained(run.cuts, run.seen_faults)),
        not_whole=run.not_whole,
        left=run.left,
    )


def longest_gap(records: Iterable[RequestRecord]) -> float:
    """The longest time between two tokens of any of these; 0 where there are none."""
    return round(max((gap for record in records for gap in record.gaps), default=0.0), 3)


def find_unexplained(cuts: Sequence[CutStream], seen_faults: Sequence[SeenFault]) -> list[str]:
    """One line for each connection that broke although its gateway was not killed."""
    killed = [(one.victim, one.at) for one in seen_faults if one.fault.kind == "kill" and one.struck]
    return [
        f"request {cut.record.index}: {cut.record.error}, and nobody had killed {cut.gateway}"
        for cut in cuts
        if not any(
            gateway == cut.gateway and cut.record.sent - NOTICED_SECONDS <= at <= cut.record.ended
            for gateway, at in killed
        )
    ]


def count_wrong(came: Sequence[int], right: Sequence[int]) -> int:
    """Tokens that are not what the undisturbed run has at their place, those beyond its end included."""
    return sum(one != other for one, other in zip(came, right, strict=False)) + max(0, len(came) - len(right))


def fault_rows(run: ChaosRun) -> Iterator[tuple[str, ...]]:
    """A row a fault, with what clients noticed from it until the next, and how soon the registry found the death."""
    ordered, seen = sorted(run.seen_faults, key=lambda one: one.at), run.seen
    for fault, until in zip(ordered, [*(one.at for one in ordered[1:]), run.end], strict=True):
        under_way = [record for record in seen if record.sent <= fault.at <= record.ended]
        longest = max((pause_within(record, fault.at, until) for record in under_way), default=0.0)
        found = seconds_to_find(fault, run.story.deaths)
        yield (
            duration(fault.at - run.start),
            str(fault),
            str(len(under_way)),
            duration(longest),
            "" if found is None else duration(found),
        )


def fault_table(run: ChaosRun) -> Table:
    """The faults by kind as a table for a terminal."""
    table = new_table("Faults, the longest pause of any stream until the next one, and when the death was found")
    for heading in FAULT_HEADINGS:
        is_text = heading == "fault"
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in fault_rows(run):
        table.add_row(*row)
    return table


def pause_within(record: RequestRecord, start: float, end: float) -> float:
    """The longest wait for a token that overlaps this stretch."""
    return max((after - before for before, after in _waits(record) if before < end and after > start), default=0.0)


def _waits(record: RequestRecord) -> Iterator[tuple[float, float]]:
    return pairwise([record.due, *record.token_at])
