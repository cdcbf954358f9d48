"""What was said on the bus of a simulation, and when: the same in every run of one seed."""

from collections.abc import Callable, Iterable
from hashlib import blake2b

import msgspec

from livescale.shared.simulation.listeners import Listener
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.simulation.virtual_time import machine_time

# Decisions, plans, transfers, blocks, instances and leases; tokens; requests that moved or ended.
LOGGED = ("evt.>", "tok.>", "req.>")


class LoggedEvent(msgspec.Struct, frozen=True, gc=False):
    """A message as it was sent, `at` seconds of virtual time."""

    at: float
    subject: str
    data: bytes


class EventLog:
    """All messages on subjects like `wanted`, in the order of sending. Each of `takers` is called with each of them;
    `events` has them where they are to be kept."""

    def __init__(self, broker: LocalBroker, wanted: Iterable[str] = LOGGED, *, keep: bool = True) -> None:
        self.events: list[LoggedEvent] = []
        self.takers: list[Callable[[LoggedEvent], None]] = [self.events.append] if keep else []
        self.count = 0
        self._digest = blake2b(digest_size=16)
        for subject in wanted:
            broker.watchers.add(Listener(subject, "", lambda subject, data, headers, reply: self._note(subject, data)))

    def of(self, start: str) -> list[LoggedEvent]:
        """The events that were kept on subjects that begin like this."""
        return [event for event in self.events if event.subject.startswith(start)]

    def digest(self) -> str:
        """A digest of everything so far, times included."""
        return self._digest.hexdigest()

    def _note(self, subject: str, data: bytes) -> None:
        event = LoggedEvent(machine_time(), subject, bytes(data))
        self._digest.update(f"{event.at!r} {subject} {len(data)} ".encode())
        self._digest.update(data)
        self.count += 1
        for take in self.takers:
            take(event)
