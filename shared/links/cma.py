"""Reads the memory of other processes of this machine, as UCX's CMA does: whether the kernel allows it, and at what
cost."""

import ctypes
import errno
import os
from pathlib import Path

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
YAMA_NEEDS_RIGHTS = 2  # from here on only with CAP_SYS_PTRACE; below that UCX itself allows it to others
CAP_SYS_PTRACE = 19

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
