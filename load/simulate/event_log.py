"""What was said on the bus of a simulation, and when: the same in every run of one seed.

A log may be a file, with a line of JSON for each event; two of them are compared up to the first event that differs."""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from livescale.shared.simulation.listeners import Listener
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.simulation.virtual_clock import machine_time

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


class LogLine(msgspec.Struct, frozen=True):
    """An event as a line tells it: with its message instead of bytes."""

    at: float
    subject: str
    message: object


class Difference(NamedTuple):
    """The first event that differs, by its number from 1 on; None is a log that has ended."""

    number: int
    one: str | None
    other: str | None


class LogSink(Protocol):
    """A file, or what behaves like one, that takes the lines of a log."""

    def write(self, data: bytes, /) -> object: ...


class LogFile:
    """Writes logged events as JSON, a line each."""

    def __init__(self, file: LogSink) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder().encode

    def write(self, event: LoggedEvent) -> None:
        line = LogLine(event.at, event.subject, read_message(event.data))
        self._file.write(self._encode(line) + b"\n")


def read_message(data: bytes) -> object:
    """The message in `data`, which is JSON or msgpack, as topics have it."""
    return msgspec.Raw(data) if data.startswith(b"{") else msgspec.msgpack.decode(data)


def find_difference(one: Path, other: Path) -> Difference | None:
    """The first event in which two logs differ; None where they are the same. Raises OSError."""
    for number, (left, right) in enumerate(zip_longest(_lines(one), _lines(other)), start=1):
        if left != right:
            return Difference(number, left, right)
    return None


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield line.rstrip("\n")
