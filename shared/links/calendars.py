"""Until when links are booked: within a process, or among all processes of a machine, in a file mapped by each."""

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from livescale.shared.links.contract import LinkError
from livescale.shared.links.flows import booked
from livescale.shared.topology.paths import Resource

HEADER = struct.Struct("8sQ")  # magic, number of records
MAGIC = b"lvslinks"
NAME_BYTES = 24
UNTIL = struct.Struct("d")
RECORD_BYTES = NAME_BYTES + UNTIL.size
MAX_LINKS = 1 << 17
FILE_BYTES = HEADER.size + MAX_LINKS * RECORD_BYTES  # sparse: takes what is written
LOCK_SECONDS = 0.01
LOCK_PAUSE_SECONDS = 0.0001


class LocalCalendar:
    """Bookings of links that only this process uses, kept in its own memory."""

    def __init__(self) -> None:
        self._until: dict[Resource, float] = {}

    def book(self, path: Sequence[Resource], size_bytes: int, since: float) -> float:
        until = booked([self._until.get(link, 0.0) for link in path], path, size_bytes, since)
        self._until.update(zip(path, until, strict=True))
        return max(until, default=since)

    def close(self) -> None:
        """Do nothing: a calendar in memory has nothing to free."""


class SharedCalendar:
    """Bookings of links that several processes use, in a `file` that each of them maps.

    Times in it are of the machine's monotonic clock; the running time of this process is behind it by `away` seconds.
    Raises LinkError where the file cannot be made or is something else.
    """

    def __init__(self, file: Path, away: Callable[[], float] = lambda: 0.0) -> None:
        self._away = away
        try:
            self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LinkError(f"shaping-file: {file}: {error.strerror}") from None
        with self._alone():
            if os.fstat(self._file).st_size == 0:
                os.pwrite(self._file, HEADER.pack(MAGIC, 0), 0)
                os.truncate(self._file, FILE_BYTES)
        if os.pread(self._file, len(MAGIC), 0) != MAGIC or os.fstat(self._file).st_size != FILE_BYTES:
            os.close(self._file)
            raise LinkError(f"shaping-file: {file} is not a shaping file; name a file that does not exist yet")
        self._map = mmap.mmap(self._file, FILE_BYTES)
        self._offsets: dict[Resource, int] = {}

    def book(self, path: Sequence[Resource], size_bytes: int, since: float) -> float:
        away = self._away()
        with self._alone():
            offsets = [self._offset(link) for link in path]
            before = [UNTIL.unpack_from(self._map, offset)[0] for offset in offsets]
            until = booked(before, path, size_bytes, since + away)
            for offset, time_booked in zip(offsets, until, strict=True):
                UNTIL.pack_into(self._map, offset, time_booked)
        return max(until, default=since + away) - away

    def close(self) -> None:
        """Unmap the file, which stays for the others. Idempotent."""
        if not self._map.closed:
            self._map.close()
            os.close(self._file)

    def _offset(self, link: Resource) -> int:
        """The offset of a link's time in the file; makes its record where there is none. Call it under the lock."""
        if link not in self._offsets:
            self._offsets[link] = self._find(link) + NAME_BYTES
        return self._offsets[link]

    def _find(self, link: Resource) -> int:
        name = blake2b(f"{link.kind} {link.owner}".encode(), digest_size=NAME_BYTES).digest()
        magic, count = HEADER.unpack_from(self._map)
        end: int = HEADER.size + count * RECORD_BYTES
        found: int = self._map.find(name, HEADER.size, end)
        if found >= 0:
            return found
        if count == MAX_LINKS:
            raise LinkError(f"shaping-file: no room for more than {MAX_LINKS} links")
        self._map[end : end + RECORD_BYTES] = name + UNTIL.pack(0.0)
        HEADER.pack_into(self._map, 0, magic, count + 1)
        return end

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the file's lock, for microseconds; it ends with its process.

        A process that is stopped while it holds the lock must not stop the others: after a while they go on without it,
        and a booking may be lost.
        """
        until = time.monotonic() + LOCK_SECONDS
        while not _locked(self._file) and time.monotonic() < until:
            time.sleep(LOCK_PAUSE_SECONDS)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


def _locked(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
