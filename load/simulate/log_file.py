"""Files of event logs, a line of JSON for each event, and the first event in which two of them differ."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from livescale.load.simulate.event_log import LoggedEvent


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
