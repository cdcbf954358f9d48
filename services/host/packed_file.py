"""The packed form of a model: its blocks as they lie in memory, one after the other, each beginning at a page.

The first page says what follows. What it must be is known from the manifest alone, so a file with another first page
or size holds something else, or is damaged; nothing in the file is trusted.

It is read in large aligned chunks past the page cache (O_DIRECT), except for what the page cache has already.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from livescale.shared.messages.parameters import Manifest
from livescale.shared.model.checkpoint import open_regular

PAGE = mmap.PAGESIZE
CHUNK_BYTES = 32 << 20
AT_ONCE = 2  # reads past the page cache: two keep a disk busy, and a third thread has the time to check what came
CACHED_SHARE = 0.9  # of a chunk's pages, from which on a copy out of the page cache is sooner than the disk

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]

MAGIC = b"livescale packed"
FORMAT = 1


class FileEnded(OSError):
    """The file has become shorter since it was opened."""


class DirectFile:
    """A file that several threads may read at the same time.

    `direct_bytes` counts the bytes that were read past the page cache. Opening it raises OSError, and CheckpointError
    where it is no regular file.
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
        """Fill `into`, which should begin at a page of memory as `offset` does at one of the file. Raises OSError."""
        # A block that is a little larger than a chunk is read at once: what little is left would cost as much again.
        chunks = max(1, round(into.nbytes / CHUNK_BYTES))
        chunk_bytes = max(PAGE, -(-into.nbytes // (chunks * PAGE)) * PAGE)
        for start in range(0, into.nbytes, chunk_bytes):
            piece = into[start : start + chunk_bytes]
            done = self._read_direct(offset + start, piece[: piece.nbytes // PAGE * PAGE])
            _fill(self._buffered.fileno(), offset + start + done, piece[done:])

    def _read_direct(self, offset: int, into: memoryview) -> int:
        """Read past the page cache where that can be done. Returns how many bytes were read: all or 0."""
        if self._direct is None or not into.nbytes or self._pages.share(offset, into.nbytes) >= CACHED_SHARE:
            return 0
        try:
            with self._turns:  # readers that started together would also end together, and then all check at once
                _fill(self._direct, offset, into)
        except OSError as error:
            if (
                error.errno != errno.EINVAL
            ):  # the errors of a file system that wants another alignment, or has no direct reads
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
        """The share of these pages that the page cache has. `offset` is a multiple of the page size."""
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
    """Open the same file for reads past the page cache, whatever its name stands for by now.

    Returns None where the file system has no such reads.
    """
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


class NotPacked(Exception):
    """A file in the packed form's place does not hold this model; the message says why."""


class PackStopped(Exception):
    """The packed form was given up while it was written, as the host ends."""


class PackedFile:
    """The packed form of the model that `manifest` describes. Raises NotPacked, OSError."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        sizes = [block.size_bytes for block in manifest.blocks]
        self._offsets, end = place_blocks(sizes)
        self.file = DirectFile(path)
        try:
            if self.file.size_bytes != end:
                raise NotPacked(f"it has {self.file.size_bytes} bytes, not {end}")
            page = bytearray(PAGE)
            self.file.read(0, memoryview(page))
            if page != first_page(manifest.version, sizes):
                raise NotPacked(f"its first page is not that of version {manifest.version}")
        except BaseException:
            self.file.close()
            raise

    def read_block(self, index: int, into: memoryview) -> None:
        """Fill `into`, which has the block's size and begins at a page. Raises OSError."""
        self.file.read(self._offsets[index], into)


class PackWriter:
    """Writes blocks in order to a file beside `path`, and renames it to `path` once everything is on the disk.

    `mode` is the file's permissions. Raises BlockingIOError while another process writes it, OSError where there is no
    room, and PackStopped once `stopped()` is true.
    """

    def __init__(
        self, path: Path, sizes: Sequence[int], mode: int = 0o600, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._sizes = sizes
        self._mode = mode
        self._offsets, self._end = place_blocks(sizes)
        self._stopped = stopped
        self._written = 0

    def __enter__(self) -> Self:
        self._file = _claim(self._part)
        try:
            os.fchmod(self._file, self._mode)
            os.posix_fallocate(self._file, 0, self._end)
        except OSError:
            self._drop()
            raise
        return self

    def write(self, block: memoryview) -> None:
        """Write the next block. It is on the disk when this returns."""
        offset = self._offsets[self._written]
        for start in range(0, block.nbytes, CHUNK_BYTES):
            if self._stopped():
                raise PackStopped(str(self._path))
            _write(self._file, block[start : start + CHUNK_BYTES], offset + start)
        os.fdatasync(self._file)
        # The host has the block in its own memory; a second copy in the page cache would only push out something else.
        os.posix_fadvise(self._file, offset, block.nbytes, os.POSIX_FADV_DONTNEED)
        self._written += 1

    def finish(self, version: str) -> None:
        """Write the first page and rename the file. All blocks are written, and they are of this version."""
        assert self._written == len(self._sizes)
        _write(self._file, memoryview(first_page(version, self._sizes)), 0)
        os.fsync(self._file)
        os.rename(self._part, self._path)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self._drop()
        else:
            os.close(self._file)

    def _drop(self) -> None:
        self._part.unlink(missing_ok=True)
        os.close(self._file)


def place_blocks(sizes: Sequence[int]) -> tuple[list[int], int]:
    """The offset of each block in the file, and the file's size."""
    *offsets, end = accumulate((-(-size // PAGE) * PAGE for size in sizes), initial=PAGE)
    return offsets, end


def first_page(version: str, sizes: Sequence[int]) -> bytes:
    head = struct.pack("<16sII", MAGIC, FORMAT, len(sizes)) + version.encode().ljust(64, b"\0")
    return head.ljust(PAGE, b"\0")


def _claim(part: Path) -> int:
    """Open the file, empty and locked. A process that was killed leaves at most this one, and the next one takes it."""
    file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process that had the lock may have finished meanwhile, and given the file its final name.
        if not os.path.samestat(os.fstat(file), os.stat(part, follow_symlinks=False)):
            raise BlockingIOError(errno.EAGAIN, "another process has just written it")
        os.truncate(file, 0)
    except BaseException:
        os.close(file)
        raise
    return file


def _write(file: int, data: memoryview, offset: int) -> None:
    written = 0
    while written < data.nbytes:
        written += os.pwrite(file, data[written:], offset + written)
