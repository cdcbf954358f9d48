"""Fair shares of links: when a flow's bytes have left, so that flows that meet on a link share it evenly (pure).

A link carries pieces in the order in which they were booked, and every flow has two pieces of one size booked at a
time. Shares come out max-min fair, and no link idles while a flow could use it: one piece is not enough for that.
"""

from collections.abc import Sequence
from typing import Protocol

from livescale.shared.topology.paths import Resource

PIECES_AHEAD = 2
PIECES_OWED = 2
PIECE_SECONDS = 0.01  # two of them outlast the lateness of timers
MIB = 1 << 20
MIN_PIECE_BYTES, MAX_PIECE_BYTES = 64 * 1024, 16 * MIB
LATE_SECONDS = 0.02  # a message that comes so soon after the last was meant to follow at once


class Calendar(Protocol):
    """Keeps until when each link is booked, in seconds of the event loop's time."""

    def book(self, path: Sequence[Resource], size_bytes: int, since: float) -> float:
        """Book a piece on every link of a path, from `since` on. Returns when its last byte has left all of them."""


def booked(until: Sequence[float], path: Sequence[Resource], size_bytes: int, since: float) -> list[float]:
    """Until when each link of a path is booked with one more piece, after what was booked `until` then.

    A link does not wait for the others of a path: a piece that is held up on one of them leaves the others free.
    """
    return [max(before, since) + size_bytes / link.rate for before, link in zip(until, path, strict=True)]


def piece_bytes_for(rate: float) -> int:
    """The size of pieces where the network carries `rate` bytes a second; the same for all flows that may meet.

    It is whole MiB, as chunks are: every piece wakes a process, and once a chunk is enough.
    """
    size = round(rate * PIECE_SECONDS)
    return min(round(size / MIB) * MIB or max(size, MIN_PIECE_BYTES), MAX_PIECE_BYTES)


class ShapedFlow:
    """The messages from one process to another over `path`, cut into pieces."""

    def __init__(self, path: Sequence[Resource], calendar: Calendar, piece_bytes: int) -> None:
        self._path = path
        self._calendar = calendar
        self._piece_bytes = piece_bytes
        self._allowed = 0
        self._departures = (float("-inf"), float("-inf"))  # of the last two pieces

    def book(self, size_bytes: int, handed_over: float) -> tuple[int, float]:
        """Book the next piece of a message with `size_bytes` left. Returns its size, and when its last byte has left.

        Call it in the order of messages, and once all but one of the pieces booked before have left.
        """
        follows = handed_over < self._departures[-1] + LATE_SECONDS
        # What wakes late is charged as if it had been punctual: the network card went on without us.
        since = self._departures[0] if follows else handed_over
        # The rest of a message is a small piece, which the next ones make up for.
        self._allowed = (self._allowed if follows else 0) + self._piece_bytes
        piece = min(size_bytes, self._allowed)
        self._allowed = min(self._allowed - piece, PIECES_OWED * self._piece_bytes)
        departs = self._calendar.book(self._path, piece, since)
        self._departures = (self._departures[-1] if follows else handed_over, departs)
        return piece, departs
