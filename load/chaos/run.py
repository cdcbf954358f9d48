"""What a run with faults left behind, to be judged."""

import msgspec

from load.chaos.client import Cut
from load.chaos.faults import Happening
from load.records import Ask, RequestRecord
from load.story import Story


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
