"""A process beside this one for work that must not harm it: programs and grammars that others wrote.

The kernel bounds its time and memory. Work comes on its stdin and answers go to stdout, each after its length. It ends
when stdin does.
"""

import asyncio
import os
import resource
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

WAIT_SECONDS = 20.0  # long, for a busy machine; the process bounds its own use of the processor
LENGTH_BYTES = 4
# What Python needs to find this package and the time zone; none of the secrets.
ENVIRONMENT = ("PATH", "HOME", "PYTHONPATH", "TZ", "LANG", "LC_ALL")


class BoundedProcess:
    """Runs `module` with these arguments. It is started when it is first needed, and again whenever it died.

    One caller at a time may ask.
    """

    def __init__(self, module: str, *arguments: str, largest_answer: int) -> None:
        self._command = (sys.executable, "-m", module, *arguments)
        self._largest_answer = largest_answer
        self._process: Process | None = None

    async def ask(self, work: bytes) -> bytes | None:
        """The process's answer; None where it died of the work, took too long, or said too much."""
        process = await self._running()
        answer = None
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    answer = await self._exchange(process, work)
        finally:
            if answer is None:  # also when cancelled, as a late answer would be taken for the next one's
                await self.end()
        return answer

    async def end(self) -> None:
        """Kill the process, if there is one, and wait until it is gone."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.communicate()

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            await self.end()
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,  # a traceback would show what is worked on
                env=bare_environment(),
            )
        return self._process

    async def _exchange(self, process: Process, work: bytes) -> bytes | None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(framed(work))
        await process.stdin.drain()
        length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES))
        return await process.stdout.readexactly(length) if length <= self._largest_answer else None


def bare_environment() -> dict[str, str]:
    """This process's environment without what others must not see."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}


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
