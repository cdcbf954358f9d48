"""A registry on a local bus, under virtual time, and what others say to it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from livescale.services.registry.actor import Registry
from livescale.services.registry.settings import RegistrySettings
from livescale.shared.bus.contract import Context, Endpoint, ServiceInfo
from livescale.shared.messages.membership import HostReport, Join
from livescale.shared.messages.registry import AskSnapshot, CheckModel, ModelChecked, Snapshot
from livescale.shared.process.run import World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import CountedIds
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker, LocalBus
from livescale.shared.subjects import CHECK_MODEL, HEARTBEAT, JOIN, SNAPSHOT
from tests.clocks import LoopClock

CLOCK = LoopClock(epoch=0.0)


@asynccontextmanager
async def registry(broker: LocalBroker | None = None) -> AsyncIterator[LocalBus]:
    """The connection of a client that talks to a registry. On the same `broker` a second registry finds what the first
    has saved."""
    broker = broker or LocalBroker()
    bus, asker = broker.connect(), broker.connect()
    info = ServiceInfo("registry", "registry-0", "under test")
    world = World(info, "box", bus, CLOCK, CountedIds(), Telemetry("registry", "registry-0"))
    running = asyncio.create_task(Registry(world, RegistrySettings()).run())
    await asyncio.sleep(0.1)
    try:
        yield asker
    finally:
        running.cancel()
        await asyncio.wait([running])
        await bus.close()
        await asker.close()


async def join(bus: LocalBus, id: str = "planner-0", pid: int = 7) -> int:
    """Join, and return the epoch that the registry gives."""
    service = id.rpartition("-")[0]
    asked = Join(service=service, id=id, pid=pid, host="box")  # type: ignore[arg-type]
    return (await bus.call(JOIN, asked, timeout=1.0)).epoch


async def snapshot(bus: LocalBus) -> Snapshot:
    return await bus.call(SNAPSHOT, AskSnapshot(), timeout=1.0)


async def add_host(bus: LocalBus, checked: ModelChecked) -> None:
    """A host with an empty cache, which finds every checkpoint to be like this."""

    async def check(command: CheckModel, context: Context) -> ModelChecked:
        return checked

    epoch = await join(bus, "host-0")
    await bus.serve(ServiceInfo("host", "host-0", "fake"), [Endpoint(CHECK_MODEL, check, {"id": "host-0"})])
    report = HostReport(id="host-0", epoch=epoch, cache_limit_bytes=1 << 40)
    bus.publish(HEARTBEAT, report, service="host", id="host-0")
    await asyncio.sleep(0.1)


def in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    virtual_time.run(main, limit_seconds=100)
