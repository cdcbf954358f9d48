"""The packed form of a model: its blocks as they lie in memory, one after the other, each from a page on.

The first page says what follows. It is known from the manifest alone, so a file whose first page or size is another
holds something else, or is damaged; nothing in the file is believed.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Self

from livescale.services.host.direct_file import CHUNK_BYTES, PAGE, DirectFile
from livescale.shared.messages.parameters import Manifest

MAGIC = b"livescale packed"
FORMAT = 1


class NotPacked(Exception):
    """There is a file in the packed form's place that does not hold this model; says why."""


class PackStopped(Exception):
    """Nobody waits for the packed form any more."""


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
        """Fill `into`, the block's size from a page on. Raises OSError."""
        self.file.read(self._offsets[index], into)


class PackWriter:
    """Writes blocks in order to a file beside `path`, which takes its name once everything is on the disk.

    `mode`: who may read it. Raises BlockingIOError while another process writes it, OSError where there is no room,
    PackStopped once `stopped()`.
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
        """The next block, on the disk when this returns."""
        offset = self._offsets[self._written]
        for start in range(0, block.nbytes, CHUNK_BYTES):
            if self._stopped():
                raise PackStopped(str(self._path))
            _write(self._file, block[start : start + CHUNK_BYTES], offset + start)
        os.fdatasync(self._file)
        # Whoever writes has the block in memory; a second copy there would only push out something else.
        os.posix_fadvise(self._file, offset, block.nbytes, os.POSIX_FADV_DONTNEED)
        self._written += 1

    def finish(self, version: str) -> None:
        """All blocks are written, and are this version."""
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
    """Where each block begins, and the file ends."""
    *offsets, end = accumulate((-(-size // PAGE) * PAGE for size in sizes), initial=PAGE)
    return offsets, end


def first_page(version: str, sizes: Sequence[int]) -> bytes:
    head = struct.pack("<16sII", MAGIC, FORMAT, len(sizes)) + version.encode().ljust(64, b"\0")
    return head.ljust(PAGE, b"\0")


def _claim(part: Path) -> int:
    """The file, empty and locked: a process that was killed leaves at most this one, and the next one takes it."""
    file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had the lock may have finished meanwhile, and the file has its final name.
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
