"""A nats-server for a test: started on loopback with JetStream, watched, and stopped with its starter."""

import asyncio
import ctypes
import json
import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from livescale.services.supervisor.bus_server import ServerError, find_server, server_name
from livescale.services.supervisor.ports import LOOPBACK

START_SECONDS = STOP_SECONDS = 60.0  # on a machine that is busy with other tests
POLL_SECONDS = 0.005
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class NatsServer:
    """A running server. `async with NatsServer.start(store) as server:` stops it at the end."""

    process: asyncio.subprocess.Process
    name: str
    url: str
    log: Path

    @classmethod
    @asynccontextmanager
    async def start(cls, store: Path, port: int = 0) -> AsyncIterator["NatsServer"]:
        """Start on loopback; port 0 takes a free one. `store` keeps JetStream's files, the log, and survives.

        Raises ServerError, which says what to do.
        """
        server = await _start(store, port)
        try:
            yield server
        finally:
            await server.stop()

    async def stop(self) -> None:
        """Stop the server. Idempotent."""
        if self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


async def _start(store: Path, port: int) -> NatsServer:
    name, log = f"livescale-{secrets.token_hex(6)}", _fresh_log(store)
    process = await asyncio.create_subprocess_exec(
        find_server(os.environ),
        *("--addr", LOOPBACK, "--port", str(port or -1), "--name", name),
        *("--jetstream", "--store_dir", str(store), "--ports_file_dir", str(store), "--log", str(log)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C stops us, and we stop the server last
        preexec_fn=_die_with_parent,
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            url = await _wait_ready(process, store, log, port)
            await _verify(url, name)
    except BaseException as error:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if isinstance(error, TimeoutError):
            raise ServerError(f"nats-server was not ready after {START_SECONDS:.0f} s; see {log}") from None
        raise
    return NatsServer(process, name, url, log)


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


async def _wait_ready(process: asyncio.subprocess.Process, store: Path, log: Path, port: int) -> str:
    """Return the server's address, which it writes once it listens."""
    while process.returncode is None:
        url = _read_url(store, process.pid)
        if url is not None:
            return url
        await asyncio.sleep(POLL_SECONDS)  # another program tells nobody that it is ready
    last = _last_line(log)
    if "address already in use" in last:
        raise ServerError(f"port {port} is in use: choose another, or set NATS_URL to the NATS server that is there")
    raise ServerError(f"nats-server ended with code {process.returncode}: {last}")


def _fresh_log(store: Path) -> Path:
    store.mkdir(parents=True, exist_ok=True)
    log = store / "nats-server.log"
    log.unlink(missing_ok=True)
    return log


def _read_url(store: Path, pid: int) -> str | None:
    for file in store.glob(f"*_{pid}.ports"):
        try:
            url: str = json.loads(file.read_text())["nats"][0]
        except (ValueError, KeyError):
            continue  # half written
        return url
    return None


def _last_line(log: Path) -> str:
    lines = log.read_text().strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "it left no log"


async def _verify(url: str, name: str) -> None:
    """Make sure that the server that answers is ours, as two servers can use one port."""
    answered = await server_name(int(url.rsplit(":", 1)[1]))
    if answered != name:
        raise ServerError(f"another NATS server ({answered}) answers at {url}: choose another port")
