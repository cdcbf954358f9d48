"""What a run with faults left behind, to be judged."""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from livescale.load.chaos.client import Cut
from livescale.load.chaos.faults import Happening
from livescale.load.records import Ask, RequestRecord
from livescale.load.story import Story


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """`start` and `end` of the load, in seconds since the epoch; `left` after the end of the system."""

    asks: list[Ask]
    records: list[RequestRecord]
    cuts: list[Cut]
    happenings: list[Happening]
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
        """The records with the times at which clients had their tokens, by whichever gateway: one that is had already
        is not waited for when it comes again, and the first that is new ends a pause that began at another gateway."""
        cuts: dict[int, list[RequestRecord]] = defaultdict(list)
        for cut in self.cuts:
            cuts[cut.record.index].append(cut.record)
        return [as_seen([*cuts[record.index], record]) for record in self.records]


def as_seen(attempts: Sequence[RequestRecord]) -> RequestRecord:
    """Of one request, in their order."""
    token_at: list[float] = []
    for attempt in attempts:
        token_at += attempt.token_at[len(token_at) :]
    return msgspec.structs.replace(attempts[-1], due=attempts[0].due, sent=attempts[0].sent, token_at=token_at)
