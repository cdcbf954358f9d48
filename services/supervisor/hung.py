"""Which processes run and do nothing: declared dead by the registry, or the registry or the bus itself. Pure.

Whoever only was held up joins again within a heartbeat, so a dead lease is looked at for a while before its process is
killed. `now` is seconds of one monotonic clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from livescale.shared.messages.membership import Member

REGISTRY, NATS = "registry-0", "nats"

# Looks that are farther apart say that the one who looks was held up, and perhaps everybody else.
LATE_SECONDS = 2.5
# No answer for so long, from a registry that is there: its own lease nobody judges.
REGISTRY_SECONDS = 8.0
# The same of a NATS server of our own.
BUS_SECONDS = 12.0


@dataclass(frozen=True)
class Kill:
    """This process is to be killed; it is started again, as any that ends."""

    name: str
    pid: int
    reason: str


class Hung:
    """Looks in, kills out. `patience_seconds`: for how long a process may run on with a dead lease."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._dead_since: dict[tuple[str, int], float] = {}
        self._unanswered_since: float | None = None
        self._deaf: tuple[int, float] | None = None
        self._looked: float | None = None

    def on_members(self, members: Iterable[Member], running: Mapping[str, int], now: float) -> list[Kill]:
        """The registry answered. `running`: pids by name."""
        self._begin(now)
        self._unanswered_since = self._deaf = None
        dead = {(each.id, each.pid) for each in members if each.lease == "dead" and running.get(each.id) == each.pid}
        self._dead_since = {each: self._dead_since.get(each, now) for each in sorted(dead)}
        return [
            self._kill(name, pid, "its lease is dead, and it has not joined again")
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
        """The bus itself did not answer in time."""
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
        """Who was away itself listens before it judges."""
        if self._looked is not None and now - self._looked > LATE_SECONDS:
            self._dead_since.clear()
            self._unanswered_since = self._deaf = None
        self._looked = now
