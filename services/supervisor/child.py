"""Runs in a new process before its own program: `python child.py PARENT_PID NICE PROGRAM ARGUMENTS...`.

The kernel is asked to kill this process when its parent dies, however the parent dies; then the program takes
this process over. Done here and not in a `preexec_fn`, which is unsafe in a parent with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent_pid: int, nice: int, program: list[str]) -> None:
    """Bind this process to its parent's life and become `program`. It never returns."""
    bind_to_parent(parent_pid)
    os.nice(nice)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


def bind_to_parent(pid: int) -> None:
    """Have the kernel kill this process when its parent dies, which is the process `pid`; exits if it already has."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    # A parent that died before the call above would never be noticed.
    if os.getppid() != pid:
        sys.exit("the supervisor is gone")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
