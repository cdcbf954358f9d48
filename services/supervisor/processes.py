"""A small supervisor: it starts processes, restarts and ends them, and leaves none behind."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from livescale.services.supervisor.policy import GiveUp, RestartPolicy

SHIM = Path(__file__).with_name("child.py")
KEPT_LINES = 40

Echo = Callable[[str, str], None]


@dataclass(frozen=True)
class ProcessCommand:
    """A program to keep running.

    Without an `essential` program the others are of no use. Lines of a `quiet` one are kept for error messages, and not
    echoed. A program of the form `python -m MODULE` may name modules that it `imports`: it can then be forked from a
    process that has imported them.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0
    essential: bool = True
    quiet: bool = False
    imports: tuple[str, ...] = ()


class RunningProcess(Protocol):
    """A process as asyncio has it, whoever started it."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    @property
    def stdout(self) -> asyncio.StreamReader | None: ...

    async def wait(self) -> int: ...


Spawn = Callable[[ProcessCommand], Awaitable[RunningProcess]]


class ChildFailed(Exception):
    """A process died again and again. The message has its last lines of output."""

    def __init__(self, name: str, reason: str, last_lines: list[str]) -> None:
        lines = "".join(f"\n  {line}" for line in last_lines) or " nothing"
        super().__init__(f"{name} does not stay up ({reason}). Its last words:{lines}")
        self.name = name


class Child:
    """One program, which is started again whenever it ends."""

    def __init__(
        self,
        command: ProcessCommand,
        policy: RestartPolicy,
        echo: Echo,
        ended: Echo,
        grace_seconds: float,
        spawn: Spawn,
    ) -> None:
        self.command = command
        self.pid: int | None = None
        self.starts = 0
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._policy = policy
        self._echo = echo
        self._ended = ended
        self._grace_seconds = grace_seconds
        self._spawn = spawn

    async def keep_up(self) -> None:
        """Run the program until this is cancelled, which ends it. Raises ChildFailed when the policy gives up."""
        loop = asyncio.get_running_loop()
        while True:
            started_at = loop.time()
            status = await self._live_once()
            match self._policy.after_death(loop.time() - started_at, status):
                case GiveUp(reason=reason):
                    raise ChildFailed(self.command.name, reason, list(self.last_lines)[-12:])
                case restart:
                    self._ended(self.command.name, f"{restart.reason}; starting it again")
                    await asyncio.sleep(restart.delay_seconds)

    async def _live_once(self) -> str:
        process = await self._spawn(self.command)
        self.pid = process.pid
        self.starts += 1
        reader = asyncio.create_task(self._read_lines(process))
        try:
            return status_text(await process.wait())
        finally:
            await end_group(process, self._grace_seconds)
            # A descendant that left the group could hold the pipe open.
            await asyncio.wait([reader], timeout=1.0)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            self.pid = None

    async def _read_lines(self, process: RunningProcess) -> None:
        assert process.stdout is not None
        rest = b""
        while chunk := await process.stdout.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._keep_line(line)
        if rest:
            self._keep_line(rest)

    def _keep_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        self.last_lines.append(text)
        if not self.command.quiet:
            self._echo(self.command.name, text)


def bound(argv: tuple[str, ...], nice: int = 0) -> tuple[str, ...]:
    """The command line of a program that is bound to the life of this process."""
    return (sys.executable, "-I", "-S", str(SHIM), str(os.getpid()), str(nice), *argv)


async def spawn(command: ProcessCommand) -> RunningProcess:
    """Start the program in a session of its own, bound to the life of this process.

    It must be called on the main thread, as the kernel watches the thread that forks.
    """
    return await asyncio.create_subprocess_exec(
        *bound(command.argv, command.nice),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        env={**os.environ, **command.env},
        start_new_session=True,
    )


async def end_group(process: RunningProcess, grace_seconds: float) -> None:
    """Send SIGTERM and give the group time to finish, then send SIGKILL to what is left of it."""
    if process.returncode is None:
        signal_group(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await process.wait()
    signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def status_text(returncode: int) -> str:
    if returncode < 0:
        return f"killed by {signal.Signals(-returncode).name}"
    return f"exit status {returncode}"


class Supervisor:
    """Keeps programs running from `start` until the end of its `async with`, which ends the last started first.

    `ended` is called with name and reason when a program has ended that is started again; by default that is echoed.
    `spawn` starts a program.
    """

    def __init__(
        self,
        echo: Echo,
        *,
        ended: Echo | None = None,
        spawn: Spawn = spawn,
        make_policy: Callable[[], RestartPolicy] = RestartPolicy,
        grace_seconds: float = 12.0,
    ) -> None:
        self.children: dict[str, Child] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waves: list[tuple[str, ...]] = []
        self._given_up: dict[str, ChildFailed] = {}
        self._failure: asyncio.Future[ChildFailed] = asyncio.get_running_loop().create_future()
        self._echo = echo
        self._ended = ended or (lambda name, reason: echo(name, f"(supervisor) {reason}"))
        self._make_policy = make_policy
        self._grace_seconds = grace_seconds
        self._spawn = spawn

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for wave in reversed(self._waves):
            await self._stop(wave)

    def start(self, *commands: ProcessCommand) -> None:
        """Start these programs together. They end together too, after all that are started later."""
        self._waves.append(tuple(command.name for command in commands))
        for command in commands:
            self._start(command)

    def _start(self, command: ProcessCommand) -> None:
        child = Child(command, self._make_policy(), self._echo, self._ended, self._grace_seconds, self._spawn)
        task = asyncio.create_task(child.keep_up(), name=f"supervise-{command.name}")
        self.children[command.name] = child
        self._tasks[command.name] = task
        task.add_done_callback(lambda done: self._on_done(command, done))

    def restart(self, name: str) -> None:
        """Send a program SIGTERM; it is started again as any that ends."""
        pid = self.children[name].pid
        if pid is not None:
            signal_group(pid, signal.SIGTERM)

    def running(self) -> dict[str, int]:
        """The pid of each program that runs now, by name."""
        return {name: child.pid for name, child in self.children.items() if child.pid is not None}

    def kill(self, name: str, pid: int) -> None:
        """Send SIGKILL to a program that does nothing any more, if it still has this pid. It is started again."""
        if self.children[name].pid == pid:
            signal_group(pid, signal.SIGKILL)

    async def failed(self) -> ChildFailed:
        """Wait until an essential program is given up, and return why."""
        return await asyncio.shield(self._failure)

    def check(self, *needed: str) -> None:
        """Raises ChildFailed if an essential program, or one of these, was given up."""
        for name, failure in self._given_up.items():
            if name in needed or self.children[name].command.essential:
                raise failure

    async def _stop(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._tasks[name].cancel()
        await asyncio.gather(*(self._tasks[name] for name in names), return_exceptions=True)

    def _on_done(self, command: ProcessCommand, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if not isinstance(error, ChildFailed):
            error = ChildFailed(command.name, repr(error), [])
        self._ended(command.name, str(error).splitlines()[0])
        self._given_up[command.name] = error
        if command.essential and not self._failure.done():
            self._failure.set_result(error)
