"""A host on a local bus, with a registry that gives it epochs and an ear for what it says."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from livescale.services.host.actor import HostService
from livescale.services.host.disk import Disk, ThreadDisk
from livescale.services.host.settings import HostSettings
from livescale.services.host.stored import Stored
from livescale.shared.bus.contract import Bus, Context, Endpoint, ServiceInfo, Topic
from livescale.shared.links.contract import Link, Peer
from livescale.shared.messages.membership import HostReport, Join, Joined
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelChecked, ModelRead, ReadModel, ReleaseModel
from livescale.shared.messages.transfers import Transfer
from livescale.shared.process.run import World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import CountedIds
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import HEARTBEAT, JOIN, MODEL_READ, READ_MODEL, RELEASE_MODEL, TRANSFER
from tests.clocks import LoopClock

CLOCK = LoopClock(epoch=0.0)
HOST = "host-0"


class SlowDisk(ThreadDisk):
    """A disk that takes a second a block."""

    blocks_read = 0

    async def read(self, stored: Stored, blocks: Mapping[int, memoryview]) -> AsyncGenerator[int, None]:
        async with aclosing(super().read(stored, blocks)) as read:
            async for checksum in read:
                await asyncio.sleep(1.0)
                self.blocks_read += 1
                yield checksum


class NoLink:
    """A link with an address that reaches nothing."""

    address = b"nowhere"

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> Peer:
        raise NotImplementedError

    async def close(self) -> None:
        pass


@dataclass
class LocalHost:
    """A host on a local bus, with what tests see and do."""

    broker: LocalBroker
    bus: Bus
    disk: Disk
    joins: list[Join] = field(default_factory=list)
    reports: list[HostReport] = field(default_factory=list)
    reads: list[ModelRead] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, path: Path, model: str = "m", **spec: Any) -> ModelChecked:
        command = ReadModel(spec=ModelSpec(name=model, path=str(path), **spec))
        return await self.bus.call(READ_MODEL, command, timeout=10, id=HOST)

    async def release(self, version: str, model: str = "m") -> None:
        await self.bus.call(RELEASE_MODEL, ReleaseModel(model=model, version=version), timeout=10, id=HOST)

    async def whole(self, count: int = 1) -> ModelRead:
        """Wait for the `count`th ModelRead."""
        await self.until(lambda: len(self.reads) >= count)
        return self.reads[count - 1]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self.news.clear()
                await self.news.wait()


async def _none() -> Link:
    return NoLink()


@asynccontextmanager
async def local_host(
    disk: Disk | None = None,
    cache_bytes: int = 1 << 26,
    open_link: Callable[[], Awaitable[Link]] = _none,
    telemetry: Telemetry | None = None,
) -> AsyncIterator[LocalHost]:
    """Start a host and wait until it has joined; end it afterwards."""
    broker = LocalBroker(CLOCK)
    here = LocalHost(broker, broker.connect(), disk or ThreadDisk())
    await _answer_joins(here)
    ears = [
        asyncio.create_task(_hear(here, HEARTBEAT, here.reports)),
        asyncio.create_task(_hear(here, MODEL_READ, here.reads)),
        asyncio.create_task(_hear(here, TRANSFER, here.transfers)),
    ]
    info = ServiceInfo("host", HOST, "host")
    world = World(info, "box", broker.connect(), CLOCK, CountedIds(), telemetry or Telemetry("host", HOST))
    running = asyncio.create_task(HostService(world, HostSettings(cache_bytes=cache_bytes), here.disk, open_link).run())
    try:
        await here.until(lambda: bool(here.reports))
        yield here
        assert not running.done()
    finally:
        for task in (running, *ears):
            task.cancel()
        await asyncio.gather(running, *ears, return_exceptions=True)
        await world.bus.close()
        await here.bus.close()
    assert running.cancelled()


def in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    virtual_time.run(main, limit_seconds=1_000)


async def _answer_joins(here: LocalHost) -> None:
    async def join(message: Join, context: Context) -> Joined:
        here.joins.append(message)
        return Joined(epoch=len(here.joins))

    await here.bus.serve(ServiceInfo("registry", "registry-0", "registry"), [Endpoint(JOIN, join)])


async def _hear(here: LocalHost, topic: Topic[Any], heard: list[Any]) -> None:
    async for received in await here.bus.subscribe(topic):
        heard.append(received.message)
        here.news.set()
