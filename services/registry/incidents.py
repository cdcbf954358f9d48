"""The memory of deaths, restarts and stalls of processes and machines. Pure; times are seconds since the epoch.

Every process tells how long it was stopped. Where most processes of a machine tell so of the same moment, the machine
itself stood still.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from livescale.shared.messages.membership import Member
from livescale.shared.messages.registry import Incident, WasAway

KEPT = 500
# Processes notice the end of one stall within a moment of each other.
MOMENT_SECONDS = 1.0


@dataclass
class _Stall:
    """`present`: how many processes of the machine were alive at that moment."""

    host: str
    start: float
    end: float
    present: int
    seconds: dict[str, float] = field(default_factory=dict)

    def tell(self) -> list[Incident]:
        longest = max(self.seconds.values())
        if len(self.seconds) > max(1, self.present / 2):
            text = f"the machine stood still for {longest:.1f} s"
            return [Incident(at=self.end, kind="stall", who=self.host, text=text)]
        return [
            Incident(at=self.end, kind="stall", who=id, text=f"stood still for {seconds:.1f} s, and others did not")
            for id, seconds in sorted(self.seconds.items())
        ]


class Incidents:
    """Keeps the last `KEPT` incidents, the newest at the end."""

    def __init__(self) -> None:
        self._told: deque[Incident | _Stall] = deque(maxlen=KEPT)

    def died(self, id: str, reason: str, at: float) -> None:
        self._told.append(Incident(at=at, kind="death", who=id, text=f"declared dead: {reason}"))

    def ended(self, id: str, reason: str, at: float) -> None:
        """A process ended. The supervisor that had started it tells how."""
        self._told.append(Incident(at=at, kind="end", who=id, text=reason))

    def joined(self, id: str, pid: int, before: Member | None, at: float) -> None:
        """Note a restart. A process that joins for the first time, with nothing `before`, is no incident."""
        if before is None:
            return
        text = f"joined again as pid {pid}" if before.pid == pid else f"started again, as pid {pid} after {before.pid}"
        self._told.append(Incident(at=at, kind="start", who=id, text=text))

    def away(self, told: WasAway, members: Iterable[Member]) -> None:
        stall = self._stall(told)
        if stall is None:
            present = sum(each.host == told.host and each.lease != "dead" for each in members)
            stall = _Stall(told.host, told.at - told.seconds, told.at, present)
            self._told.append(stall)
        stall.seconds[told.id] = max(told.seconds, stall.seconds.get(told.id, 0.0))
        stall.start, stall.end = min(stall.start, told.at - told.seconds), max(stall.end, told.at)

    def _stall(self, told: WasAway) -> _Stall | None:
        for each in reversed(self._told):
            if isinstance(each, _Stall) and each.host == told.host and abs(each.end - told.at) <= MOMENT_SECONDS:
                return each
        return None

    def last(self, limit: int) -> list[Incident]:
        """The last `limit` incidents, the newest at the end."""
        told = [one for each in self._told for one in (each.tell() if isinstance(each, _Stall) else [each])]
        return sorted(told, key=lambda one: one.at)[-limit:]
