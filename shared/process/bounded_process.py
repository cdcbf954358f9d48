"""A process beside this one for work that must not harm it: programs and grammars that others wrote.

`bounded_answers` is the other end: the process that answers, within its bounds.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress

from livescale.shared.process.bounded_answers import LENGTH_BYTES, NO_ANSWER, framed

WAIT_SECONDS = 20.0  # long, for a busy machine; the process bounds its own use of the processor
# What Python needs to find this package and the time zone; none of the secrets.
ENVIRONMENT = ("PATH", "HOME", "PYTHONPATH", "TZ", "LANG", "LC_ALL")


class BoundedProcess:
    """Runs `module` with these arguments. It is started when it is first needed, and again whenever it died.

    One caller at a time may ask, or start it before it is needed.
    """

    def __init__(self, module: str, *arguments: str, largest_answer: int) -> None:
        self._command = (sys.executable, "-m", module, *arguments)
        self._largest_answer = largest_answer
        self._process: Process | None = None

    async def start(self) -> None:
        """Start the process, so that the first piece of work does not wait for that."""
        await self._running()

    async def ask(self, work: bytes) -> bytes | None:
        """The process's answer; None where the work took too much or too long, or the answer is too long."""
        process = await self._running()
        answer = None
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    answer = await self._exchange(process, work)
        finally:
            if answer is None:  # also when cancelled, as a late answer would be taken for the next one's
                await self.end()
        return None if answer == NO_ANSWER else answer

    async def end(self) -> None:
        """Kill the process and its child, if there is one, and wait until both are gone."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:  # else its group's number may be another's by now
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()  # which ends a child that has outlived it
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
                start_new_session=True,  # its child is killed with it
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
