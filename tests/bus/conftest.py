"""One suite for both buses: `net` opens connections to one server, local or real."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from shared.bus.contract import Bus
from shared.bus.local import LocalBroker


@dataclass
class Net:
    """A server and what a test may do to it."""

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


@pytest.fixture(params=["local"])
def net(request: pytest.FixtureRequest) -> Net:
    chosen: Net = request.getfixturevalue(f"{request.param}_net")
    return chosen
