"""What was said on the bus of a simulation, and when: the same in every run of one seed."""

from collections.abc import Iterable
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
    """All messages on subjects like `wanted`, in the order of sending."""

    def __init__(self, broker: LocalBroker, wanted: Iterable[str] = LOGGED) -> None:
        self.events: list[LoggedEvent] = []
        for subject in wanted:
            broker.watchers.add(Listener(subject, "", lambda subject, data, headers, reply: self._note(subject, data)))

    def of(self, start: str) -> list[LoggedEvent]:
        """The events on subjects that begin like this."""
        return [event for event in self.events if event.subject.startswith(start)]

    def digest(self) -> str:
        """A digest of everything, times included."""
        digest = blake2b(digest_size=16)
        for event in self.events:
            digest.update(f"{event.at!r} {event.subject} {len(event.data)} ".encode())
            digest.update(event.data)
        return digest.hexdigest()

    def _note(self, subject: str, data: bytes) -> None:
        self.events.append(LoggedEvent(machine_time(), subject, data))
