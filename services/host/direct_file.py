"""Reading a file in large aligned chunks: past the page cache (O_DIRECT), except for what lies there already."""

import ctypes
import errno
import mmap
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from livescale.shared.model.checkpoint import open_regular

PAGE = mmap.PAGESIZE
CHUNK_BYTES = 32 << 20
AT_ONCE = 2  # reads past the page cache: two keep a disk busy, and a third thread has the time to check what came
CACHED_SHARE = 0.9  # of a chunk's pages, from which on a copy out of the page cache is sooner than the disk

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


class FileEnded(OSError):
    """The file is shorter than it was."""


class DirectFile:
    """A file of which several threads may read. Raises OSError, CheckpointError where it is no regular file.

    `direct_bytes`: how many of the bytes that were read came from the disk itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.direct_bytes = 0
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(AT_ONCE)
        self._buffered = open_regular(path)
        self.size_bytes = os.fstat(self._buffered.fileno()).st_size
        self._direct = _open_direct(self._buffered.fileno())
        self._pages = _Pages(self._buffered.fileno(), self.size_bytes)
        if self._direct is None:
            os.posix_fadvise(self._buffered.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def read(self, offset: int, into: memoryview) -> None:
        """Fill `into`, which should begin at a page, like `offset`. Raises OSError."""
        # A block that is a little larger than a chunk is read at once: what little is left would cost as much again.
        chunks = max(1, round(into.nbytes / CHUNK_BYTES))
        chunk_bytes = max(PAGE, -(-into.nbytes // (chunks * PAGE)) * PAGE)
        for start in range(0, into.nbytes, chunk_bytes):
            piece = into[start : start + chunk_bytes]
            done = self._read_direct(offset + start, piece[: piece.nbytes // PAGE * PAGE])
            _fill(self._buffered.fileno(), offset + start + done, piece[done:])

    def _read_direct(self, offset: int, into: memoryview) -> int:
        """How much of it could be read past the page cache, and was: all or nothing."""
        if self._direct is None or not into.nbytes or self._pages.share(offset, into.nbytes) >= CACHED_SHARE:
            return 0
        try:
            with self._turns:  # readers that were under way together would end, and then check, together
                _fill(self._direct, offset, into)
        except OSError as error:
            if error.errno != errno.EINVAL:  # what a file system says that wants another alignment, or none of it
                raise
            return 0
        with self._lock:
            self.direct_bytes += into.nbytes
        return into.nbytes

    def close(self) -> None:
        self._pages.close()
        self._buffered.close()
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Pages:
    """Which of a file's pages lie in the page cache."""

    def __init__(self, file: int, size_bytes: int) -> None:
        self._map = mmap.mmap(file, size_bytes, prot=mmap.PROT_READ) if size_bytes else None

    def share(self, offset: int, size_bytes: int) -> float:
        """Of the pages from `offset`, a multiple of the page size."""
        assert self._map is not None
        here = np.zeros(-(-size_bytes // PAGE), np.uint8)
        start = np.frombuffer(self._map, np.uint8, count=1, offset=offset).ctypes.data
        if _libc.mincore(start, size_bytes, here.ctypes.data) != 0:
            return 0.0
        return float((here & 1).mean())

    def close(self) -> None:
        if self._map is not None:
            self._map.close()


def _open_direct(file: int) -> int | None:
    """The same file once more, whatever its name stands for by now. None where the file system has no such reads."""
    try:
        return os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return None


def _fill(file: int, offset: int, into: memoryview) -> None:
    filled = 0
    while filled < into.nbytes:  # one read returns at most 2 GiB
        count = os.preadv(file, [into[filled:]], offset + filled)
        if count == 0:
            raise FileEnded(errno.EIO, "the file ended too early")
        filled += count
