"""The memory of other processes of this machine, which the kernel copies from, as UCX's CMA does: whether it allows
that, where the memory is, whose it still is, and the thread that has it copied.

A process tells in its link's address where a random word lies in its memory. Who reads that word there knows that the
kernel allows it, and that the number of the process has not passed on to another one.
"""

import asyncio
import ctypes
import errno
import os
import struct
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
YAMA_NEEDS_RIGHTS = 2  # from here on only with CAP_SYS_PTRACE; below that UCX itself allows it to others
CAP_SYS_PTRACE = 19

BOOT = Path("/proc/sys/kernel/random/boot_id")
NUMBERS = Path("/proc/self/ns/pid")  # processes of one namespace know each other by the same numbers

MACHINE_BYTES, WORD_BYTES = 8, 16
MARK = struct.Struct(f">{MACHINE_BYTES}sQQ{WORD_BYTES}s")
# A piece is still in the cache when it is read again: of 2 MiB not all is, and smaller ones cost more calls of the
# kernel. Where nobody reads pieces, they are those after which a copy can end early.
PIECE_BYTES, UNREAD_BYTES = 1 << 20, 16 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t


class _Span(ctypes.Structure):
    """`struct iovec`: an address and a number of bytes."""

    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def why_refused() -> str | None:
    """Why the kernel refuses to read other processes' memory, and what allows it; None where it does not.

    What it says of one pair of processes, as of two users, shows only when they connect.
    """
    refused = read_error(os.getpid())
    if refused is not None:
        return (
            f"process_vm_readv: {refused}: a seccomp filter forbids it. Allow it by a newer Docker, by a profile with "
            "process_vm_readv and process_vm_writev (--security-opt seccomp=FILE), or by --cap-add SYS_PTRACE"
        )
    try:
        scope = int(YAMA.read_text())
    except (OSError, ValueError):
        return None
    if scope >= YAMA_NEEDS_RIGHTS and not has_right(CAP_SYS_PTRACE):
        return f"kernel.yama.ptrace_scope is {scope}: set it to 1 or 0 by sysctl, or add the capability SYS_PTRACE"
    return None


def read_error(pid: int) -> str | None:
    """Why a byte of this process's memory cannot be read as if it were that of process `pid`; None where it can."""
    there = memoryview(bytearray(b"x"))
    try:
        read(pid, address_of(there), memoryview(bytearray(1)))
    except OSError as error:
        return error.strerror
    return None


def read(pid: int, address: int, into: memoryview) -> None:
    """Fill `into` from the memory of process `pid` at `address`, by one call of the kernel. Raises OSError."""
    remote, local = _Span(address, into.nbytes), _Span(address_of(into), into.nbytes)
    done = _libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    if done != into.nbytes:
        number = ctypes.get_errno() if done < 0 else errno.EFAULT  # a part is read where the rest is not mapped there
        raise OSError(number, os.strerror(number))


def address_of(view: memoryview) -> int:
    """Where the bytes of a writable view lie in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def has_right(number: int) -> bool:
    """Whether this process has the capability of this number in effect."""
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> number & 1)


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


CopyJob = tuple[Callable[[], bool], asyncio.Future[bool]]


class CopyThread:
    """A thread that copies memory for an event loop, in the order in which copies were begun; the first one starts it.

    It does what an executor of one thread does, at a fifth of the calls in the loop's thread: a copy leaves nothing of
    the program in the cache, so there each call costs many times what it does elsewhere.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[CopyJob | None] = SimpleQueue()
        self._thread: Thread | None = None

    def begin(self, copy: Callable[[], bool]) -> asyncio.Future[bool]:
        """Have the thread call `copy`. Returns a future for what comes of it; to cancel that does not end the call."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="copies", daemon=True)  # a link may be left open at exit
            self._thread.start()
        done: asyncio.Future[bool] = self._loop.create_future()
        self._jobs.put((copy, done))
        return done

    async def settle(self) -> None:
        """Return once all that was begun before has ended, cancelled or not."""
        await asyncio.wait((self.begin(bool),))

    def close(self) -> None:
        """Wait for the thread to end what was begun."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while self._do(self._jobs.get()):
            pass

    def _do(self, job: CopyJob | None) -> bool:
        """Returns whether there is more to do. What it held of a job is let go with it: buffers are large."""
        if job is None:
            return False
        copy, done = job
        try:
            copied = copy()
        except Exception as error:  # noqa: BLE001 whatever it is, who waits gets it from the future
            self._loop.call_soon_threadsafe(_fail, done, error)
        else:
            self._loop.call_soon_threadsafe(_end, done, copied)
        return True


def _end(done: asyncio.Future[bool], copied: bool) -> None:
    if not done.done():
        done.set_result(copied)


def _fail(done: asyncio.Future[bool], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
