"""What a bounded process does: it answers pieces of work until its stdin ends, in no more time and memory than it may.

Work comes on stdin and answers go to stdout, each after its length. The kernel keeps the bounds.
"""

import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

LENGTH_BYTES = 4


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
    """Answer until `work` ends. A piece of work that takes more than `processor_seconds` ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the parent, which ends this process
    bound_memory(memory_bytes)
    while length := work.read(LENGTH_BYTES):
        data = work.read(int.from_bytes(length))
        # Its signal ends the process; a handler in Python would not run inside C code.
        signal.setitimer(signal.ITIMER_PROF, processor_seconds)
        said = answer(data)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(framed(said))
        answers.flush()
