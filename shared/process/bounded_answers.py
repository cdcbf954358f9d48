"""What a bounded process does: it answers pieces of work until its stdin ends, in no more time and memory than it may.

Work comes on stdin and answers go to stdout, each after its length. The kernel keeps the bounds. They hold for a child
of this process, which does the work: when a piece has ended the child, a fork is there for the next piece at once. To
start an interpreter takes a fifth of a second of a processor, and seconds of a busy one.
"""

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

LENGTH_BYTES = 4
NO_ANSWER = b""  # in place of an answer, where the work took too much
# How work ends its process that takes too much: of time, of memory in compiled code, of its stack.
OVERRUNS = (signal.SIGPROF, signal.SIGABRT, signal.SIGSEGV)


def framed(data: bytes) -> bytes:
    """Return the data behind its length, as it is written to a pipe."""
    return len(data).to_bytes(LENGTH_BYTES) + data


def bound_memory(more_bytes: int) -> None:
    """Let this process have so much more memory than now, and leave no core file."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def answer_all(
    answer: Callable[[bytes], bytes], work: BinaryIO, answers: BinaryIO, processor_seconds: float, memory_bytes: int
) -> None:
    """Answer until `work` ends, and exit. Of a piece of work that takes too much the answer is NO_ANSWER."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the parent, which ends this process
    while (child := os.fork()) != 0:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if -code not in OVERRUNS:
            sys.exit(abs(code))  # its stdin ended, or nobody knows what it has read and written
        _write(answers, NO_ANSWER)
    _answer_within(answer, work, answers, processor_seconds, memory_bytes)


def _answer_within(
    answer: Callable[[bytes], bytes], work: BinaryIO, answers: BinaryIO, processor_seconds: float, memory_bytes: int
) -> None:
    """Answer until `work` ends, as a process that a piece of work may end. Nothing is read ahead for it, as nobody
    sends a piece of work before the last one's answer."""
    bound_memory(memory_bytes)
    while length := work.read(LENGTH_BYTES):
        data = work.read(int.from_bytes(length))
        # Its signal ends the process; a handler in Python would not run inside C code.
        signal.setitimer(signal.ITIMER_PROF, processor_seconds)
        said = answer(data)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answers, said)


def _write(answers: BinaryIO, said: bytes) -> None:
    answers.write(framed(said))
    answers.flush()
