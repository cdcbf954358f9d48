"""The supervisor's side of fork servers: processes that start at once, as their imports were made beforehand."""

import asyncio
import ctypes
import os
import socket
import sys
from asyncio.subprocess import DEVNULL
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from livescale.services.supervisor.fork_server import ForkRequest
from livescale.services.supervisor.processes import Echo, ProcessCommand, RunningProcess, bound, end_group, spawn

PR_SET_CHILD_SUBREAPER = 36
PID_BYTES = 32
END_SECONDS = 2.0
FORK_SECONDS = 60.0  # with all imports, from a cold disk
ROOM = " " * 2_000  # for the arguments under which forked processes are listed
# A fork copies one thread, so there is to be no other: numpy would start some.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class ForkFailed(Exception):
    """A fork server has ended, or did not fork."""


class OutputProtocol(asyncio.StreamReaderProtocol):
    """Reads a pipe and closes it at its end, which not every event loop does by itself."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


class ForkedProcess:
    """A child of this process that another one forked."""

    def __init__(self, pid: int, stdout: asyncio.StreamReader, pipe: asyncio.BaseTransport) -> None:
        self.pid = pid
        self.stdout: asyncio.StreamReader | None = stdout
        self.returncode: int | None = None
        self._pipe = pipe
        self._ended = asyncio.Event()
        self._fd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._fd, self._reap)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    async def kill(self) -> None:
        """Kill the process and its group at once, without asking it to end."""
        await end_group(self, 0.0)
        self._pipe.close()

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set()


class Adoption:
    """While one is held, a process whose parent has ended becomes a child of this one, if this one is an ancestor."""

    def __init__(self) -> None:
        self._holders = 0

    def __enter__(self) -> None:
        self._holders += 1
        adopt(True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holders -= 1
        adopt(self._holders > 0)


def adopt(yes: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class ForkServer:
    """A process that has imported some modules and forks."""

    def __init__(self, process: RunningProcess, asking: socket.socket, adoption: Adoption) -> None:
        self.has_forked = False
        self._process = process
        self._asking = asking
        self._adoption = adoption
        self._turn = asyncio.Lock()

    @classmethod
    async def start(cls, command: ProcessCommand, adoption: Adoption) -> Self:
        """Start one for processes like this. It imports for seconds, and then answers what it was asked meanwhile."""
        asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asking.setblocking(False)
        server = (sys.executable, "-m", "livescale.services.supervisor.fork_server", str(asked.fileno()), ROOM)
        with asked:
            process = await asyncio.create_subprocess_exec(
                *bound((*server, *command.imports)),
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,  # what cannot be forked is started by itself, and tells what is wrong
                env={**os.environ, **command.env, **ONE_THREAD},
                pass_fds=(asked.fileno(),),
                start_new_session=True,
            )
        return cls(process, asking, adoption)

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    async def fork(self, command: ProcessCommand) -> ForkedProcess:
        """Have a process forked. Raises ForkFailed, and OSError. Being cancelled it leaves no process behind."""
        async with self._turn:
            asking = asyncio.create_task(self._fork(command))
            try:
                return await asyncio.shield(asking)
            except asyncio.CancelledError:
                with suppress(ForkFailed, OSError):
                    await (await asking).kill()
                raise

    async def _fork(self, command: ProcessCommand) -> ForkedProcess:
        request = ForkRequest(command.argv[2:], {**os.environ, **command.env}, command.nice)
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb", 0) as output, self._adoption:
            try:
                socket.send_fds(self._asking, [msgspec.json.encode(request)], [writing])
            finally:
                os.close(writing)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(FORK_SECONDS):
                pid = int(await loop.sock_recv(self._asking, PID_BYTES) or b"0")
            if pid == 0:
                raise ForkFailed("the fork server has ended, or could not fork")
            stdout = asyncio.StreamReader()
            kept = os.fdopen(os.dup(output.fileno()), "rb", 0)  # the transport closes it
            pipe, _ = await loop.connect_read_pipe(lambda: OutputProtocol(stdout), kept)
        self.has_forked = True
        return ForkedProcess(pid, stdout, pipe)

    async def close(self) -> None:
        self._asking.close()
        await end_group(self._process, END_SECONDS)


class ForkServers:
    """A fork server for each kind of process, which is started with the first of them. Used with `async with`."""

    def __init__(self, echo: Echo) -> None:
        self._echo = echo
        self._servers: dict[tuple[str, ...], ForkServer] = {}
        self._useless: set[tuple[str, ...]] = set()
        self._can_wait = can_wait()
        self._starting = asyncio.Lock()
        self._adoption = Adoption()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    async def spawn(self, command: ProcessCommand) -> RunningProcess:
        """Start a process. It is forked if its command names imports, and started by itself if it does not, or if
        forking fails."""
        if not command.imports or not self._can_wait or command.imports in self._useless:
            return await spawn(command)
        try:
            server = await self._server(command)
        except OSError as error:
            self._echo(command.name, f"(supervisor) no fork server: {error}")
            return await spawn(command)
        try:
            return await server.fork(command)
        except (ForkFailed, OSError) as error:
            if not server.has_forked:
                self._useless.add(command.imports)
            if self._servers.get(command.imports) is server:
                del self._servers[command.imports]
                await server.close()
            self._echo(command.name, f"(supervisor) started by itself: {str(error) or 'no answer'}")
            return await spawn(command)

    async def _server(self, command: ProcessCommand) -> ForkServer:
        async with self._starting:
            server = self._servers.get(command.imports)
            if server is None or not server.is_running:
                if server is not None:
                    await server.close()
                server = await ForkServer.start(command, self._adoption)
                self._servers[command.imports] = server
            return server


def can_wait() -> bool:
    """Whether this system tells of the end of a process that another one started; old kernels and sandboxes do not."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True
