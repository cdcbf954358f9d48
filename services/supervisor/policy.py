"""What the supervisor concludes about the processes that it watches. Pure; `now` is seconds of one monotonic clock.

It decides what a starting system still waits for, when a process that ended is started again, and which processes are
killed because they run and do nothing. Those are processes that the registry has declared dead, and a registry or bus
that does not answer. A process that was only held up joins again within a heartbeat, so one with a dead lease is
watched for a while before it is killed.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from livescale.shared.messages.membership import Member
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import Snapshot

REGISTRY, NATS = "registry-0", "nats"

# If looks are farther apart than this, the supervisor itself was held up, and perhaps everything else.
LATE_SECONDS = 2.5
# Seconds for which a registry may answer nothing; no other process judges the registry's own lease.
REGISTRY_SECONDS = 8.0
# Seconds for which the system's own NATS server may answer nothing.
BUS_SECONDS = 12.0


def missing_members(snapshot: Snapshot, ids: Iterable[str]) -> list[str]:
    """The processes that have not joined, in the order asked for."""
    alive = {member.id for member in snapshot.members if member.lease == "alive"}
    return [each for each in ids if each not in alive]


def missing_instances(snapshot: Snapshot, specs: Iterable[ModelSpec]) -> list[str]:
    """One line for each model that is not in memory or serves with fewer instances than its minimum."""
    states = {model.spec.name: model.state for model in snapshot.models}
    missing = []
    for spec in specs:
        serving = len(
            {worker.instance for worker in snapshot.workers if worker.model == spec.name and worker.state == "serving"}
        )
        if states.get(spec.name) != "ready":
            missing.append(f"model {spec.name} ({states.get(spec.name, 'unknown')})")
        elif serving < spec.min_instances:
            missing.append(f"model {spec.name} ({serving} of {spec.min_instances} instances)")
    return missing


def failed_models(snapshot: Snapshot, names: Container[str]) -> list[str]:
    """One line for each of these models that could not be read."""
    return [
        f"model {model.spec.name}: {model.error}"
        for model in snapshot.models
        if model.state == "failed" and model.spec.name in names
    ]


@dataclass(frozen=True)
class Restart:
    """The process is to be started again after `delay_seconds`."""

    delay_seconds: float
    reason: str


@dataclass(frozen=True)
class GiveUp:
    """The process does not stay up, and is not started again."""

    reason: str


class RestartPolicy:
    """Restarts with doubling delays, until `most_quick_deaths` lives in a row were shorter than `quick_seconds`."""

    def __init__(
        self,
        *,
        quick_seconds: float = 10.0,
        most_quick_deaths: int = 5,
        first_delay_seconds: float = 0.1,
        longest_delay_seconds: float = 5.0,
    ) -> None:
        self._quick_seconds = quick_seconds
        self._most_quick_deaths = most_quick_deaths
        self._first_delay_seconds = first_delay_seconds
        self._longest_delay_seconds = longest_delay_seconds
        self._quick_deaths = 0

    def after_death(self, lived_seconds: float, status: str) -> Restart | GiveUp:
        """What to do about a process that lived for `lived_seconds`; `status` says how it ended."""
        if lived_seconds >= self._quick_seconds:
            self._quick_deaths = 0
            return Restart(self._first_delay_seconds, f"{status} after {lived_seconds:.0f} s")
        self._quick_deaths += 1
        if self._quick_deaths >= self._most_quick_deaths:
            return GiveUp(f"{status}, the {self._quick_deaths}th time within {self._quick_seconds:.0f} s of its start")
        delay = min(self._first_delay_seconds * 2 ** (self._quick_deaths - 1), self._longest_delay_seconds)
        return Restart(delay, f"{status} after {lived_seconds:.1f} s")


@dataclass(frozen=True)
class Kill:
    """This process is to be killed; then it is started again, as any process that ends."""

    name: str
    pid: int
    reason: str


class Hung:
    """Takes what each look at the system finds, and returns which processes to kill.

    `patience_seconds` is how long a process may run on with a dead lease.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._dead_since: dict[tuple[str, int], float] = {}
        self._unanswered_since: float | None = None
        self._deaf: tuple[int, float] | None = None
        self._looked: float | None = None

    def on_members(self, members: Iterable[Member], running: Mapping[str, int], now: float) -> list[Kill]:
        """The registry answered with these members. `running` has the pids of the processes by name."""
        self._begin(now)
        self._unanswered_since = self._deaf = None
        dead = {(each.id, each.pid) for each in members if each.lease == "dead" and running.get(each.id) == each.pid}
        self._dead_since = {each: self._dead_since.get(each, now) for each in sorted(dead)}
        return [
            self._kill(name, pid, "it was declared dead and has not joined again")
            for (name, pid), since in list(self._dead_since.items())
            if now - since >= self._patience_seconds
        ]

    def on_silence(self, running: Mapping[str, int], now: float) -> list[Kill]:
        """The registry did not answer in time, and the bus works."""
        self._begin(now)
        self._deaf = None
        if self._unanswered_since is None:
            self._unanswered_since = now
        pid, silent = running.get(REGISTRY), now - self._unanswered_since
        if pid is None or silent < REGISTRY_SECONDS:
            return []
        self._unanswered_since = None
        return [self._kill(REGISTRY, pid, f"it has answered nothing for more than {silent:.1f} s")]

    def on_deafness(self, running: Mapping[str, int], now: float) -> list[Kill]:
        """The bus itself did not answer in time, so nothing could."""
        self._begin(now)
        pid = running.get(NATS)
        if pid is None:
            self._deaf = None
            return []
        if self._deaf is None or self._deaf[0] != pid:
            self._deaf = pid, now
        silent = now - self._deaf[1]
        if silent < BUS_SECONDS:
            return []
        self._deaf = None
        return [self._kill(NATS, pid, f"it has answered nothing for more than {silent:.1f} s")]

    def _kill(self, name: str, pid: int, reason: str) -> Kill:
        self._dead_since.pop((name, pid), None)
        return Kill(name, pid, reason)

    def _begin(self, now: float) -> None:
        """Begin a look. After a time in which the supervisor was stopped itself, everything is judged anew."""
        if self._looked is not None and now - self._looked > LATE_SECONDS:
            self._dead_since.clear()
            self._unanswered_since = self._deaf = None
        self._looked = now
