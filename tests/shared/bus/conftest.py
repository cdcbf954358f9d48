"""One suite for both buses: `net` opens connections to one server, local or real."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from livescale.shared.bus.contract import Bus
from livescale.shared.bus.nats import NatsBus
from livescale.shared.simulation.local_bus import LocalBroker
from tests.nats_server import NatsServer


@dataclass
class Net:
    """A server, and what a test may do to it."""

    connect: Callable[[str], Awaitable[Bus]]
    down: Callable[[], Awaitable[None]]
    up: Callable[[], Awaitable[None]]


@pytest.fixture
async def local_net() -> AsyncIterator[Net]:
    broker = LocalBroker()

    async def connect(name: str) -> Bus:
        return broker.connect()

    async def down() -> None:
        broker.down()

    async def up() -> None:
        broker.up()

    yield Net(connect, down, up)
    for bus in list(broker.buses):
        await bus.close()


class RealServer:
    """A nats-server that can be stopped and started again on its port, with its files."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.port = 0
        self.url = ""
        self._running = AsyncExitStack()
        self._server: NatsServer | None = None

    async def up(self) -> None:
        server = self._server = await self._running.enter_async_context(NatsServer.start(self.store, self.port))
        self.url, self.port = server.url, int(server.url.rsplit(":", 1)[1])

    async def down(self) -> None:
        await self._running.aclose()

    def freeze(self) -> None:
        """Have the server's process do nothing, until `thaw`."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    @property
    def _process(self) -> asyncio.subprocess.Process:
        assert self._server is not None
        return self._server.process


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RealServer]:
    server = RealServer(tmp_path / "nats")
    await server.up()
    yield server
    await server.down()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the server's echo may take long."""
    monkeypatch.setattr("livescale.shared.bus.nats.FLUSH_SECONDS", 60.0)


@pytest.fixture
async def nats_net(server: RealServer) -> AsyncIterator[Net]:
    buses: list[Bus] = []

    async def connect(name: str) -> Bus:
        bus = await NatsBus.connect(server.url, "test", name, timeout=60)
        buses.append(bus)
        return bus

    yield Net(connect, server.down, server.up)
    for bus in buses:
        await bus.close()


@pytest.fixture(params=["local", pytest.param("nats", marks=pytest.mark.system)])
def net(request: pytest.FixtureRequest) -> Net:
    chosen: Net = request.getfixturevalue(f"{request.param}_net")
    return chosen
