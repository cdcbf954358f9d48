"""What the invariants look at, found in the history of a run, and how full the links were. Pure."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from livescale.load.simulate.faults import MESSAGE_KINDS
from livescale.load.simulate.seeds.history import Answer, Delivered, History, SeedFault
from livescale.load.simulate.seeds.system import VOCABULARY, SeedAsk, SeedSystem
from livescale.services.worker.engine.modelled_steps import choose_token, first_state, follow
from livescale.services.worker.scheduling.batch import TokenSampling
from livescale.shared.bus.codec import decode
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.requests import Sampling, TokenFrame
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.subjects import LEASE, PLAN, TOKENS
from livescale.shared.topology.paths import Resource
from livescale.shared.transfer.flow_end import HERE
from livescale.shared.transfer.sender import SENDS

FATAL = ("kill", "stop", "freeze", "part")  # faults after which a process may be declared dead
HARMLESS = ("scale", "role", "slow-disk")  # faults by which nothing may be lost
EVERYBODY = ("stall", "outage", "noise", *MESSAGE_KINDS)  # faults that strike all
FIRST_ID_DASHES = 2  # in gateway-0-7; a request that is submitted again has its attempt behind one more
LEASE_SECONDS = 6.0  # after a fault is over, its victim may still be declared dead


def answered(system: SeedSystem, history: History) -> Iterator[tuple[SeedAsk, Answer]]:
    """Yield each request that ended, with its answer."""
    return ((system.asks[answer.number], answer) for answer in history.answers)


def undisturbed(ask: SeedAsk, version: str) -> list[int]:
    """The tokens of a request that nothing happens to."""
    one = ask.ask
    *_, state = follow(first_state(version), one.prompt)
    made: list[int] = []
    while len(made) < one.max_tokens:
        sampling = TokenSampling(Sampling(temperature=one.temperature, seed=one.seed), len(made))
        made.append(choose_token(state, sampling, VOCABULARY))
        [state] = follow(state, made[-1:])
    return made


def places_of(system: SeedSystem) -> dict[str, str]:
    """The place in the topology of each process that has a link, by its id."""
    topology = system.cluster.topology
    hosts = {f"host-{number}": host.id for number, host in enumerate(topology.hosts)}
    return hosts | {f"worker-{number}": gpu.id for number, gpu in enumerate(topology.gpus)}


def leases(history: History) -> Iterator[tuple[float, LeaseChanged]]:
    """Yield the registry's judgements, each with its time."""
    for event in history.events:
        if event.subject.startswith("evt.lease."):
            yield event.at, decode(LEASE.type, event.data, json=LEASE.json)


def failed_scales(history: History) -> Iterator[str]:
    """Yield each scale that failed, with its outcome."""
    for event in history.events:
        if event.subject.startswith("evt.plan."):
            record: ScaleRecord = decode(PLAN.type, event.data, json=PLAN.json)
            if record.state == "failed":
                yield f"{record.id} failed: {record.outcome}"


def resumed_requests(history: History) -> list[str]:
    """The requests that went on elsewhere after they had tokens, by the ids under which they did."""
    found = dict[str, None]()
    for event in history.events:
        if not event.subject.startswith("tok."):
            continue
        frame = decode(TOKENS.type, event.data, json=TOKENS.json)
        for row in frame.rows if isinstance(frame, TokenFrame) else ():
            if row.index and row.request_id.count("-") > FIRST_ID_DASHES:
                found[row.request_id] = None
    return list(found)


def strikes(fault: SeedFault, services: Sequence[str]) -> bool:
    """Whether a fault has anything to do with these services."""
    whom = (fault.who.rpartition("-")[0], fault.other)
    by_name = any(service in services for service in whom) and fault.what not in HARMLESS
    return by_name or fault.what in EVERYBODY


def was_struck(faults: Sequence[SeedFault], id: str, at: float) -> bool:
    """Whether a fault can be why this process was declared dead `at` seconds after the system was ready."""
    able = [fault for fault in faults if (fault.who == id and fault.what in FATAL) or fault.what == "lose"]
    return any(fault.at <= at <= _known_by(fault, faults) for fault in able)


def _known_by(fault: SeedFault, faults: Sequence[SeedFault]) -> float:
    """When the registry knows at the latest that a fault has struck: it hears of nothing while it is away itself."""
    away = [one for one in faults if one.who.startswith("registry-") and one.what in FATAL]
    latest = fault.ends
    for one in sorted(away, key=lambda one: one.at):
        if one.at <= latest + LEASE_SECONDS:
            latest = max(latest, one.ends)
    return latest + LEASE_SECONDS


@dataclass
class BusyLink:
    """How far one direction of a link is `ahead` of its rate, in bytes, since it last had nothing to carry.

    Each channel is a flow of its own. What of it was under way when one begins to count comes within no time; `early`
    counts it, and `first` how many messages of each channel that were.
    """

    since: float
    ahead: float = 0.0
    early: float = 0.0
    first: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    is_broken: bool = False

    def carry(self, one: Delivered, rate: float, spare: float) -> None:
        """Count a message that came; the link is broken where that is more than it can carry, and `spare` bytes."""
        self.ahead -= rate * (one.at - self.since)
        self.since = one.at
        if self.ahead <= 0.0:
            self.ahead = self.early = 0.0
            self.first.clear()
        self.ahead += one.size_bytes
        channel = one.sender, one.receiver, one.channel
        # A process that stood still hands over at once whatever has passed the links meanwhile: chunks, and the
        # heartbeats of their flow between them.
        if one.size_bytes > len(HERE) and self.first[channel] < SENDS:
            self.first[channel] += 1
            self.early += one.size_bytes
        self.is_broken = self.is_broken or self.ahead > self.early + spare


def path_finder(system: SeedSystem) -> Callable[[Delivered], Sequence[Resource]]:
    """What finds the links that a message passes."""
    place, topology = places_of(system), system.cluster.topology

    @functools.cache
    def path(sender: str, receiver: str) -> Sequence[Resource]:
        return topology.path(place[sender], place[receiver]).resources

    return lambda one: path(one.sender, one.receiver)
