"""What was seen of a random system while it ran: what the invariants are checked on. Times are of the event loop."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from livescale.load.records import RequestRecord
from livescale.load.simulate.event_log import LoggedEvent
from livescale.load.simulate.seeds.faults import SeedFault

End = Literal["complete", "late", "left", "broken", "refused"]


class Answer(msgspec.Struct, frozen=True):
    """How a request ended. `number` is its place among the asks of the system.

    It was late for its client, its client left, its gateway died, or the system refused it. `record` is None where no
    attempt came to its end.
    """

    number: int
    end: End
    record: RequestRecord | None = None
    reason: str = ""


class LaidOut(msgspec.Struct, frozen=True):
    """A block was given to an engine; `right` says whether its bytes are the model's."""

    engine: str
    block: int
    right: bool


class Ran(msgspec.Struct, frozen=True):
    """An engine ran blocks `first` to `stop` - 1 for the first time, `at` this time."""

    engine: str
    first: int
    stop: int
    at: float


class Delivered(msgspec.Struct, frozen=True):
    """A message came over the link from one process to another, on a channel of theirs."""

    at: float
    sender: str
    receiver: str
    size_bytes: int
    channel: int = 0


@dataclass
class History:
    """All that was seen. `versions` are those of the models by name, and `sizes` their bytes.

    `ready_at` is when requests and faults began, `calm_at` when the last fault was over and everybody ran again,
    `rested_at` when nothing was left to do; None where that did not come, and `amiss` says what was left. `copied_at`:
    by model, when a whole copy was seen in memory after `calm_at`. `crashes`: processes that ended by themselves.
    `counted_for`: the longest that a router has counted requests, once all was calm and every client had its answer.
    `twice_for`: the longest that a router has counted a request at two workers. `awaited`: by worker and by whom it
    waited for although that one was dead, for how long at most. `told`: by registry and by what it waited for although
    it had been told of it, likewise. `loads`: the LOADs that were sent, by worker, its epoch and the plan; `strays`:
    loads of workers that had been told so in an earlier life.
    `struck`: the faults that have happened, with whom they befell and when.
    `troubles`: what policies say of their own state, and calls that failed unexpectedly.
    """

    ready_at: float = 0.0
    calm_at: float = 0.0
    rested_at: float | None = None
    amiss: list[str] = field(default_factory=list)
    struck: list[SeedFault] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    counted_for: float = 0.0
    twice_for: float = 0.0
    awaited: dict[tuple[str, str], float] = field(default_factory=dict)
    told: dict[tuple[str, str], float] = field(default_factory=dict)
    loads: set[tuple[str, int, str]] = field(default_factory=set)
    strays: list[str] = field(default_factory=list)
    copied_at: dict[str, float] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    engines: list[LaidOut | Ran] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    events: list[LoggedEvent] = field(default_factory=list)
    digest: str = ""
