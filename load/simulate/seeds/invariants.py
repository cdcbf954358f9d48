"""What must hold of every random system, whatever its faults. Pure: each rule looks at what was seen of one run."""

from collections import defaultdict
from collections.abc import Callable, Iterator

import msgspec

from livescale.load.simulate.seeds.busy_links import BusyLink, path_finder
from livescale.load.simulate.seeds.client_rules import ends_once, tokens, told
from livescale.load.simulate.seeds.evidence import (
    FATAL,
    MUTE,
    answered,
    failed_scales,
    has_slow_pipeline,
    leases,
    may_kill_workers,
    may_lose_orders,
    resumed_requests,
    strikes,
    taken_back,
    was_struck,
)
from livescale.load.simulate.seeds.history import History, LaidOut, removed, updated
from livescale.load.simulate.seeds.router_rules import acts_in_office, counts_once, counts_right, counts_what_is_there
from livescale.load.simulate.seeds.system import SeedSystem
from livescale.services.registry.copies import READ_TIMEOUT_SECONDS
from livescale.services.worker.engine.modelled import MOST_LATE_SECONDS
from livescale.shared.model.latency import Work, find_latency
from livescale.shared.topology.paths import Resource

REST_SECONDS = 120.0  # from the last fault on
COPY_SECONDS = 5.0  # beside what a disk takes to read
AWAITED_SECONDS = 1.0  # longer than the word of a death takes, and than what ends then
# In the outcome of a scale.
REFUSED_DRAIN, SILENT, NO_COPY = "did not drain: ", "nothing arrived for", "no worker or host has the whole model"
REPLACED, BEING_REMOVED = "another version has taken its place", "it is being removed"
MOST_TAKEN_BACK = 2  # by chance: what others need changes, too
ROUNDING = 1e-6


class Violation(msgspec.Struct, frozen=True):
    """A rule that a run has broken, and a sentence on how."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


Rule = Callable[[SeedSystem, History], Iterator[str]]


def check(system: SeedSystem, history: History) -> list[Violation]:
    """Return every violation of any rule in what happened."""
    return [Violation(name, text) for name, rule in RULES.items() for text in rule(system, history)]


def blocks_first(system: SeedSystem, history: History) -> Iterator[str]:
    """No layer runs before its block is there and right: its result would be made up."""
    there: dict[str, set[int]] = defaultdict(set)
    for one in history.engines:
        if isinstance(one, LaidOut):
            if not one.right:
                yield f"{one.engine}: block {one.block} was laid out with wrong bytes"
            there[one.engine].add(one.block)
        elif missing := set(range(one.first, one.stop)) - there[one.engine]:
            yield f"{one.engine} ran blocks {one.first} to {one.stop - 1} without {sorted(missing)} at {one.at:.3f} s"


def copies_back(system: SeedSystem, history: History) -> Iterator[str]:
    """Once all faults are over, a copy of each model is in memory after what its disk takes, and a little more."""
    disk = min(host.disk for host in system.cluster.topology.hosts)
    within = sum(history.sizes.values()) / disk + COPY_SECONDS  # a disk reads one version after the other
    if any(may_lose_orders(fault, system.faults) for fault in system.faults):
        within += READ_TIMEOUT_SECONDS
    for model in (spec.name for spec in system.specs):
        at = history.copied_at.get(model)
        if at is None or at - history.calm_at > within:
            took = "never" if at is None else f"{at - history.calm_at:.1f} s after the last fault"
            yield f"a copy of {model} was back {took}, not within {within:.1f} s"


def deaths_by_fault(system: SeedSystem, history: History) -> Iterator[str]:
    """Nobody is declared dead, or has to join again, but by a fault of its own: a process that works is not to be
    killed. A registry that was away itself knows nothing of others."""
    yield from (f"{crash} (nobody killed it)" for crash in history.crashes)
    joined, dead = set[str](), set[str]()
    for at, change in leases(history):
        joins = change.reason == "joined"
        # A process that was declared dead joins when it can: after its fault the bus may be down for some time.
        again = joins and change.id in joined and change.id not in dead
        if (again or change.state == "dead") and not was_struck(system.faults, change.id, at - history.ready_at):
            what = "joined again" if again else f"was declared dead ({change.reason})"
            yield f"{change.id} {what} at {at:.2f} s without a fault"
        if joins:
            joined.add(change.id)
            dead.discard(change.id)
        elif change.state == "dead":
            dead.add(change.id)


def given_up_by_fault(system: SeedSystem, history: History) -> Iterator[str]:
    """No load is given up, and no request that has tokens lost, but by a fault of those who take part; or by a pipeline
    that one of them keeps waiting. None is given up for silence unless messages were lost, as the planner is patient
    for longer than any fault lasts; or a model has to be read again once its host is back, and nobody has it meanwhile;
    or it has got another version, or is removed. A worker that lived on does not refuse to drain, however often it is
    told so."""
    can_fail = any(strikes(fault, ("worker", "host", "registry")) for fault in system.faults)
    can_miss = any(fault.what in MUTE for fault in system.faults)
    can_be_gone = any(strikes(fault, ("host",)) and fault.what in FATAL for fault in system.faults)
    can_be_another = any(may_kill_workers(fault) for fault in system.faults)
    for failure in failed_scales(history):
        if (REPLACED in failure and updated(system.faults)) or (BEING_REMOVED in failure and removed(system.faults)):
            continue
        is_refused = REFUSED_DRAIN in failure and not can_be_another
        is_excused = can_miss or (NO_COPY in failure and can_be_gone)
        if not can_fail or is_refused or (SILENT in failure and not is_excused):
            yield failure
    can_lose = any(strikes(fault, ("worker", "router", "gateway", "registry")) for fault in system.faults)
    if not (can_lose or has_slow_pipeline(history)):
        yield from (f"{id} had tokens, and had to go on elsewhere" for id in resumed_requests(history))


def epochs_grow(system: SeedSystem, history: History) -> Iterator[str]:
    """Each life of a process has a higher epoch than all before: by it others tell its lives apart."""
    highest, lives = 0, dict[int, str]()
    for at, change in leases(history):
        is_new = change.epoch not in lives
        if is_new and change.epoch < highest and change.reason == "joined":
            yield f"{change.id} joined with epoch {change.epoch} after {highest} at {at:.2f} s"
        if lives.setdefault(change.epoch, change.id) != change.id:
            yield f"epoch {change.epoch} is of {lives[change.epoch]} and of {change.id}"
        highest = max(highest, change.epoch)


def links_hold(system: SeedSystem, history: History) -> Iterator[str]:
    """No link carries more bytes than its rate allows, at any time for any while."""
    path = path_finder(system)
    busy: dict[Resource, BusyLink] = {}
    most = max((one.size_bytes for one in history.delivered), default=0)
    for one in history.delivered:
        for link in path(one):
            use = busy.setdefault(link, BusyLink(since=one.at))
            was_broken = use.is_broken
            use.carry(one, link.rate, spare=most)
            if use.is_broken and not was_broken:
                yield f"{link.kind} of {link.owner} was {use.ahead:.0f} bytes ahead of its rate at {one.at:.2f} s"


def kv_owned_once(system: SeedSystem, history: History) -> Iterator[str]:
    """No KV block has two owners, and no policy contradicts itself."""
    yield from history.overlaps
    yield from history.troubles


def waits_for_the_living(system: SeedSystem, history: History) -> Iterator[str]:
    """Nobody waits for what a dead worker was to send, once it can have heard that it is dead."""
    if any(fault.what in MUTE for fault in system.faults):
        return
    for (who, whom), seconds in history.awaited.items():
        was_away = any(
            fault.what == "stall" or (fault.what == "freeze" and fault.who == who) for fault in system.faults
        )
        if seconds > AWAITED_SECONDS and not was_away:
            yield f"{who} waited for {whom} for {seconds:.2f} s after it was declared dead"


def hears_what_is_read(system: SeedSystem, history: History) -> Iterator[str]:
    """No registry waits for a host to read what that host's report shows, whatever else of its words was lost."""
    for (who, what), seconds in history.told.items():
        if seconds > AWAITED_SECONDS:
            yield f"{who} waited for {what} for {seconds:.2f} s after it was told"


def loads_for_itself(system: SeedSystem, history: History) -> Iterator[str]:
    """No worker loads what was meant for an earlier life of it: its planner takes it for spare."""
    yield from history.strays


def gives_for_good(system: SeedSystem, history: History) -> Iterator[str]:
    """No model is given back again and again what it has just given up for another one."""
    for model, times in taken_back(history).items():
        if times > MOST_TAKEN_BACK:
            yield f"{model} took back {times} times what it had just given up"


def rests(system: SeedSystem, history: History) -> Iterator[str]:
    """Soon after the last fault nothing is left to do: no request, no flow, no instance too many, nobody away."""
    if history.rested_at is None:
        left = "; ".join(history.amiss[:5])
        yield f"not at rest {REST_SECONDS:.0f} s after the last fault: {left}"


def physics(system: SeedSystem, history: History) -> Iterator[str]:
    """No first token comes before messages and a step of the prompt's own tokens can have taken place."""
    worker = system.cluster.worker
    latency = find_latency(worker.engine_profile)
    for ask, answer in answered(system, history):
        ttft = None if answer.record is None else answer.record.ttft
        own = max(len(ask.ask.prompt) - ask.shared, 1)
        step = latency.seconds(Work(prefill_tokens=own, prefill_squares=own**2)) / worker.engine_speed
        # Three messages, each half as long as usual. A step after a late one may be shorter by as much.
        least = step + 1.5 * system.cluster.message_seconds - MOST_LATE_SECONDS
        if ttft is not None and ttft < least - ROUNDING:
            yield f"request {answer.number} had its first token after {ttft:.4f} s, which takes {least:.4f} s"


RULES: dict[str, Rule] = {
    "tokens": tokens,
    "told": told,
    "ends once": ends_once,
    "blocks first": blocks_first,
    "copies back": copies_back,
    "deaths by fault": deaths_by_fault,
    "given up by fault": given_up_by_fault,
    "epochs grow": epochs_grow,
    "links hold": links_hold,
    "KV owned once": kv_owned_once,
    "counts right": counts_right,
    "counts once": counts_once,
    "counts what is there": counts_what_is_there,
    "acts in office": acts_in_office,
    "waits for the living": waits_for_the_living,
    "hears what is read": hears_what_is_read,
    "loads for itself": loads_for_itself,
    "gives for good": gives_for_good,
    "rests": rests,
    "physics": physics,
}
