"""The memory of other processes of this machine, which the kernel copies from: where it is, and whose it still is.

A process tells in its link's address where a random word lies in its memory. Who reads that word there knows that the
kernel allows it, and that the number of the process has not passed on to another one.
"""

import errno
import os
import struct
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from livescale.shared.links.cma import address_of, read

BOOT = Path("/proc/sys/kernel/random/boot_id")
NUMBERS = Path("/proc/self/ns/pid")  # processes of one namespace know each other by the same numbers

MACHINE_BYTES, WORD_BYTES = 8, 16
MARK = struct.Struct(f">{MACHINE_BYTES}sQQ{WORD_BYTES}s")
# A piece is still in the cache when it is read again: of 2 MiB not all is, and smaller ones cost more calls of the
# kernel. Where nobody reads pieces, they are those after which a copy can end early.
PIECE_BYTES, UNREAD_BYTES = 1 << 20, 16 << 20


class ProcessMark(NamedTuple):
    """Where a process lives, its number there, and where in its memory which word lies."""

    machine: bytes
    pid: int
    address: int
    word: bytes

    def pack(self) -> bytes:
        return MARK.pack(*self)

    @classmethod
    def unpack(cls, packed: bytes) -> "ProcessMark":
        return cls(*MARK.unpack(packed))


NOWHERE = ProcessMark(bytes(MACHINE_BYTES), 0, 0, bytes(WORD_BYTES))  # of a process whose memory is not to be read


def own_mark() -> ProcessMark:
    """The mark of this process; NOWHERE where the kernel does not tell what it takes."""
    try:
        machine = f"{BOOT.read_text()}{os.readlink(NUMBERS)}".encode()
    except OSError:
        return NOWHERE
    word = _own_word()
    digest = blake2b(machine, digest_size=MACHINE_BYTES).digest()
    return ProcessMark(digest, os.getpid(), address_of(word), bytes(word))


@cache
def _own_word() -> memoryview:
    return memoryview(bytearray(os.urandom(WORD_BYTES)))  # kept where it lies as long as this process lives


class ProcessMemory:
    """The memory of the process with this mark."""

    def __init__(self, mark: ProcessMark) -> None:
        self._mark = mark

    @classmethod
    def of(cls, mine: ProcessMark, theirs: ProcessMark) -> "ProcessMemory | None":
        """The other process's memory; None where one of the two cannot read the other's. Both come to the same."""
        return cls(theirs) if mine.machine == theirs.machine != NOWHERE.machine else None

    def copy(
        self,
        address: int,
        into: memoryview,
        on_piece: Callable[[memoryview], None] | None,
        is_over: Callable[[], bool],
    ) -> bool:
        """Fill `into` with the bytes at `address`, and have `on_piece` called with each piece while it is in the cache.

        Returns False where this process may not read the other's memory, before anything is written. Raises OSError
        where the other process ends meanwhile, or `is_over` says that nobody needs the bytes any more. Call it in a
        thread: it takes milliseconds.
        """
        try:
            self._check()
        except OSError:
            return False
        step = UNREAD_BYTES if on_piece is None else PIECE_BYTES
        for start in range(0, into.nbytes, step):
            if is_over():
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            piece = into[start : start + step]
            read(self._mark.pid, address + start, piece)
            if on_piece is not None:
                on_piece(piece)
        self._check()
        return True

    def _check(self) -> None:
        found = memoryview(bytearray(WORD_BYTES))
        read(self._mark.pid, self._mark.address, found)
        if found != self._mark.word:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
