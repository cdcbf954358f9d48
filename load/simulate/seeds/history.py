"""What happens to a random system, and what was seen of it while it ran: what the invariants are checked on. Times are
of the event loop."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, get_args

import msgspec

from livescale.load.records import RequestRecord
from livescale.load.simulate.event_log import LoggedEvent
from livescale.load.simulate.faults import FaultKind
from livescale.shared.messages.membership import Role
from livescale.shared.messages.requests import TokenLogprobs

Command = Literal["scale", "role", "limit", "update", "form", "remove"]  # of operators
SeedFaultKind = Literal[FaultKind, "stop", "stall", "outage", "noise", Command]
WorkerMoment = Literal["loading", "live", "draining", "emptying", "taking over", "handing over", "moving KV"]
Moment = Literal["", WorkerMoment, "sending", "queueing", "reading"]
GATEWAY = "gateway-0"
AGAIN = 1_000  # what the number of a request grows by where its client sends it again
COMMANDS: Sequence[Command] = get_args(Command)
FAULT_SECONDS = 10.0  # in which faults begin
OFTEN = ("registry-", "router-", "planner-", "host-")  # services whose processes are struck twice as often as others
ROLES: tuple[Role, ...] = ("prefill", "decode", "colocated")


class SeedFault(msgspec.Struct, frozen=True):
    """Something that happens `at` seconds after the system was ready, and is over `seconds` later.

    Faults of a virtual cluster are as they are there, and besides:

    - stop: a process ends as planned, and is started again when it is over. A gateway can end, too, with its clients.
    - stall: all processes stand still.
    - outage: the bus is down.
    - noise: links damage the share `amount` of the messages that they carry.
    - scale, role: an operator wants `amount` instances of the model `who`, or another `role` of a worker.
    - limit: an operator lets the model `who` have at most `amount` instances.
    - update: an operator registers the model `who` with the checkpoint `other`, so that it becomes another version.
    - form: an operator registers the model `who` in another form, `other` is `name=value`: that is a version, too.
    - remove: an operator removes the model `who`, and registers it again as soon after as it is taken.

    With `when` it strikes as soon after `at` as a process does that, and that process where `who` is nobody; `wait`
    seconds later where it is to meet not the beginning.
    """

    at: float
    what: SeedFaultKind
    who: str = ""
    seconds: float = 0.0
    amount: float = 0.0
    other: str = ""
    role: Role = "colocated"
    when: Moment = ""
    wait: float = 0.0

    @property
    def ends(self) -> float:
        return self.at + self.seconds

    @property
    def is_command(self) -> bool:
        """Whether it is something that an operator may do, and nothing goes wrong."""
        return self.what in COMMANDS

    def describe(self) -> str:
        """Say in words when the fault begins, what it does, and to whom."""
        whoever = f"as soon as somebody is {self.when}" if self.when else ""
        details = [f"of {self.who}" if self.who else "", whoever, f"{self.wait:.2f} s later" if self.wait else ""]
        details += [f"and {self.other}" if self.other else ""]
        details += [f"to {self.role}"] if self.what == "role" else []
        details += [f"for {self.seconds:.2f} s" if self.seconds else "", f"x {self.amount:g}" if self.amount else ""]
        return f"{self.at:6.2f} s {self.what} {' '.join(part for part in details if part)}"


def is_gateway(id: str) -> bool:
    """Whether this is a process that clients ask."""
    return id.startswith("gateway-")


def updated(faults: Iterable[SeedFault]) -> set[str]:
    """The models that an operator updates."""
    return {fault.who for fault in faults if fault.what in ("update", "form")}


def removed(faults: Iterable[SeedFault]) -> set[str]:
    """The models that an operator removes for a while."""
    return {fault.who for fault in faults if fault.what == "remove"}


def random_faults(
    chance: Random, processes: Sequence[str], models: Sequence[str], busy_at: Sequence[float]
) -> list[SeedFault]:
    """Up to ten faults, by when they begin: soon after one of the times `busy_at`, when requests come and instances are
    loaded. In one seed of four an operator acts and nothing goes wrong; there everything must go as planned."""
    makers = FaultMakers(chance, processes, models, is_calm=chance.random() < 0.25)
    count = chance.randint(0, 5) if makers.is_calm else chance.randint(1, 10)
    at, faults = chance.choice(busy_at) + chance.uniform(0.0, 1.5), list[SeedFault]()
    for _ in range(count):
        faults.append(makers.make(at))
        # Many happen close to each other: in the middle of what the ones before have set going.
        at = min(at + chance.choice((0.2, 0.6, 2.0)) * chance.random(), FAULT_SECONDS)
    return faults


class FaultMakers:
    """Make faults of each kind for a system of these `processes` and `models`."""

    def __init__(
        self, chance: Random, processes: Sequence[str], models: Sequence[str], *, is_calm: bool = False
    ) -> None:
        self.is_calm = is_calm
        self._chance = chance
        self._workers = [id for id in processes if id.startswith("worker-")]
        self._hosts = [id for id in processes if id.startswith("host-")]
        others = [id for id in processes if id not in self._workers]
        self._others = others + [id for id in others if id.startswith(OFTEN)]
        self._models = models
        commands: list[tuple[Callable[[float], SeedFault], float]] = [(self._scale, 4), (self._role, 1)]
        faults: list[tuple[Callable[[float], SeedFault], float]] = [
            (self._end, 6),
            (self._away, 6),
            (self._all, 2),
            (self._disturb, 2),
            (self._link, 4),
            (self._slow_disk, 1),
        ]
        self._makers = commands if is_calm else commands + faults

    def make(self, at: float) -> SeedFault:
        """Draw a fault that begins `at` seconds after the system was ready."""
        makers, weights = zip(*self._makers, strict=True)
        make: Callable[[float], SeedFault] = self._chance.choices(makers, weights)[0]
        return make(at)

    def _anyone(self) -> str:
        """A process; half of all faults are of workers."""
        return self._chance.choice(self._workers if self._chance.random() < 0.5 else self._others)

    def _end(self, at: float) -> SeedFault:
        what: SeedFaultKind = self._chance.choice(("kill", "kill", "kill", "stop"))
        return SeedFault(at, what, self._anyone(), self._chance.uniform(0.2, 3.0))

    def _away(self, at: float) -> SeedFault:
        """A gateway's clients are part of it here, so that it is not away without them."""
        what: SeedFaultKind = self._chance.choice(("freeze", "part"))
        who = self._anyone()
        return SeedFault(at, what, self._workers[0] if is_gateway(who) else who, self._chance.uniform(0.1, 5.0))

    def _all(self, at: float) -> SeedFault:
        what: SeedFaultKind = self._chance.choice(("stall", "outage"))
        return SeedFault(at, what, seconds=self._chance.uniform(0.1, 4.0))

    def _disturb(self, at: float) -> SeedFault:
        what: SeedFaultKind = self._chance.choice(("lose", "lose", "delay", "repeat"))
        return SeedFault(at, what, "", self._chance.uniform(0.2, 4.0), self._chance.choice((0.02, 0.1, 0.3)))

    def _link(self, at: float) -> SeedFault:
        """One process is cut off from all workers or all hosts, or all links damage some of what they carry."""
        one, seconds = self._chance.choice([*self._workers, *self._hosts]), self._chance.uniform(0.1, 4.0)
        if self._chance.random() < 0.5:
            return SeedFault(at, "cut-link", one, seconds, other=self._chance.choice(("worker", "host")))
        return SeedFault(at, "noise", "", seconds, self._chance.choice((0.02, 0.2)))

    def _slow_disk(self, at: float) -> SeedFault:
        return SeedFault(at, "slow-disk", self._chance.choice(self._hosts), self._chance.uniform(0.5, 5.0), 4.0)

    def _scale(self, at: float) -> SeedFault:
        return SeedFault(
            at, "scale", self._chance.choice(self._models), amount=float(self._chance.choice((0, 1, 2, 4, 8)))
        )

    def _role(self, at: float) -> SeedFault:
        return SeedFault(at, "role", self._chance.choice(self._workers), role=self._chance.choice(ROLES))


class Told(msgspec.Struct, frozen=True):
    """How likely the tokens of an answer are, and those of its prompt, where the client asked for that."""

    made: tuple[TokenLogprobs, ...] = ()
    prompt: tuple[TokenLogprobs, ...] = ()


def index_of(request_id: str) -> int:
    """The index of the ask that a request is of, however often its client or its gateway has sent it again."""
    return int(request_id.split("-")[2]) % AGAIN


End = Literal["complete", "late", "left", "broken", "refused"]


class AskOutcome(msgspec.Struct, frozen=True):
    """How a request ended. `number` is its place among the asks of the system.

    It was late for its client, its client left, its gateway died, or the system refused it. `record` is None where no
    attempt came to its end. `told` is what came with the tokens of one that is complete. `adapter` is the version that
    was asked for.
    """

    number: int
    end: End
    record: RequestRecord | None = None
    reason: str = ""
    told: Told = Told()
    adapter: str | None = None


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
    """All that was seen. `versions` are all that a model has had, by its name, and `sizes` the bytes of each version.

    `ready_at` is when requests and faults began, `calm_at` when the last fault was over and everybody ran again,
    `rested_at` when nothing was left to do; None where that did not come, and `amiss` says what was left. `copied_at`:
    by model, when a whole copy was seen in memory after `calm_at`. `crashes`: processes that ended by themselves.
    `counted_for`: the longest that a router has counted requests, once all was calm and every client had its answer.
    `twice_for`: the longest that a router has counted a request at two workers. `gone_for`: by router and request, for
    how long at most it has counted one that no worker has. `usurped`: what routers gave out after they had been
    declared dead. `awaited`: by worker and by whom it waited for although that one was dead, for how long at most.
    `told`: by registry and by what it waited for although it had been told of it, likewise. `loads`: the LOADs that
    were sent, by worker, its epoch and the plan; `strays`: loads of workers that had been told so in an earlier life.
    `struck`: the faults that have happened, with whom they befell and when.
    `troubles`: what policies say of their own state, and calls that failed unexpectedly.
    """

    ready_at: float = 0.0
    calm_at: float = 0.0
    rested_at: float | None = None
    amiss: list[str] = field(default_factory=list)
    struck: list[SeedFault] = field(default_factory=list)
    versions: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    counted_for: float = 0.0
    twice_for: float = 0.0
    gone_for: dict[tuple[str, str], float] = field(default_factory=dict)
    usurped: list[str] = field(default_factory=list)
    awaited: dict[tuple[str, str], float] = field(default_factory=dict)
    told: dict[tuple[str, str], float] = field(default_factory=dict)
    loads: set[tuple[str, int, str]] = field(default_factory=set)
    strays: list[str] = field(default_factory=list)
    copied_at: dict[str, float] = field(default_factory=dict)
    answers: list[AskOutcome] = field(default_factory=list)
    engines: list[LaidOut | Ran] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    events: list[LoggedEvent] = field(default_factory=list)
    digest: str = ""
