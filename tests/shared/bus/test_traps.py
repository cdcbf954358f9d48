"""Every known trap of NATS and nats-py, sprung against a real server.

What each is, and where it is sprung:

- an exception in a callback kills the read loop while the client stays "connected": here, for the error callback;
  test_nats.py for the others, and for a read loop that is dead for any reason
- a message whose headers or reply cannot be taken apart does the same: ../fuzz/test_nats_bus.py
- headers and payload together over the limit close the client for good: here with a refusal's headers; the exact
  limit in test_nats.py, the refusal before sending in test_contract.py
- a request that is pending when the server dies waits out its timeout: test_contract.py, on both buses
- watches of the key-value store fall silent after a restart: there are none. State is read once, at a start, and
  kept in the server's files (test_nats.py); events that were missed are made up for by heartbeats
- slow consumer: nothing waits in the client, messages go straight on; a slow reader's own queue in test_subscription.py
- leases after an outage: here, a registry and its members with a server that is away longer than a lease lasts
- two servers on one port: here; the port in use by anything else in test_server.py
- the outbound buffer overflows while the server is away: here; while it is there, in test_nats.py
- handlers run one after another: test_calls.py; `stop` drops what is queued, `flush` is no barrier: test_contract.py
"""

import asyncio
from typing import Any

import nats.errors
import pytest

from livescale.services.registry.actor import Registry
from livescale.services.registry.settings import RegistrySettings
from livescale.services.supervisor.bus_server import ServerError
from livescale.shared.bus.contract import Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.bus.nats import NatsBus
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.registry import AskSnapshot, Named
from livescale.shared.messages.requests import Cancel
from livescale.shared.process import membership
from livescale.shared.process.membership import Membership
from livescale.shared.process.run import World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import RandomIds, SystemClock
from livescale.shared.subjects import CANCEL, LEASE, SNAPSHOT
from tests.nats_server import NatsServer
from tests.shared.bus.conftest import Net, RealServer
from tests.shared.bus.test_nats import ECHO, INFO, until_connected

pytestmark = pytest.mark.system

LEASE_SECONDS = 1.2  # of real time: a heartbeat may be as late, on a busy machine


async def test_an_error_whose_report_fails_leaves_the_connection_reading(
    nats_net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = await nats_net.connect("a")
    assert isinstance(bus, NatsBus)

    def fail(*arguments: object, **fields: object) -> None:
        raise RuntimeError("while an error was reported")

    monkeypatch.setattr(bus._log, "warning", fail)
    report: Any = bus._client._error_cb
    await report(nats.errors.SlowConsumerError("s", None, 1, None))  # type: ignore[arg-type]
    await bus.flush()
    assert bus.connected


async def test_a_refusal_too_large_for_the_bus_ends_neither_side(nats_net: Net) -> None:
    asker, server = await nats_net.connect("a"), await nats_net.connect("b")

    async def refuse(message: Named, context: Context) -> Named:
        raise Refusal(400, "x" * (2 << 20))

    await server.serve(INFO, [Endpoint(ECHO, refuse)])
    with pytest.raises(Refusal, match=r"500: .* bytes with headers; the bus takes 1048576"):
        await asker.call(ECHO, Named(model="m"), timeout=60)
    await server.flush()


async def test_what_is_said_while_the_server_is_away_is_dropped_and_nothing_else_breaks(nats_net: Net) -> None:
    bus = await nats_net.connect("a")
    cancels = await bus.subscribe(CANCEL)
    await nats_net.down()
    for _ in range(20):
        bus.publish(CANCEL, Cancel(request_id="x" * 250))
    for _ in range(5_000):
        bus.publish(CANCEL, Cancel(request_id="x" * 250))
    await nats_net.up()
    await until_connected(bus)
    bus.publish(CANCEL, Cancel(request_id="after"))
    async with asyncio.timeout(60):
        async for received in cancels:
            assert received.message.request_id == "after"
            break
    assert bus.counts["dropped_disconnected"] == 5_020


async def test_a_second_server_on_the_port_is_refused_and_the_first_serves_on(
    server: RealServer, nats_net: Net, tmp_path: Any
) -> None:
    bus = await nats_net.connect("a")
    with pytest.raises(ServerError, match=f"port {server.port} is in use"):
        async with NatsServer.start(tmp_path / "second", server.port):
            pass
    await bus.flush()


async def test_after_an_outage_longer_than_a_lease_nobody_is_declared_dead(
    nats_net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "REPORT_SECONDS", LEASE_SECONDS / 10)
    clock = SystemClock()
    buses = {name: await nats_net.connect(name) for name in ("registry-0", "worker-0", "worker-1", "watcher")}
    info = ServiceInfo("registry", "registry-0", "under test")
    world = World(info, "here", buses["registry-0"], clock, RandomIds(), Telemetry("registry", "registry-0"))
    registry = Registry(world, RegistrySettings(suspect_seconds=LEASE_SECONDS, dead_seconds=1.5 * LEASE_SECONDS))
    members = [Membership(buses[f"worker-{n}"], clock, "planner", f"worker-{n}", "here") for n in (0, 1)]
    changes = await buses["watcher"].subscribe(LEASE)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(registry.run()), *(group.create_task(member.run()) for member in members)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(member.joined() for member in members))
            # It is a member as well. Had it lost the answer to its own join, it would join once more.
            while await registry.why_not_ready() is not None:  # noqa: ASYNC110 - it tells nobody else
                await asyncio.sleep(0.01)
        epochs = [member.epoch for member in members]
        await nats_net.down()
        await asyncio.sleep(2 * LEASE_SECONDS)  # of real time, as the server is real
        await nats_net.up()
        for bus in buses.values():
            await until_connected(bus)
        await asyncio.sleep(2 * LEASE_SECONDS)  # time to be declared dead in
        snapshot = await buses["watcher"].call(SNAPSHOT, AskSnapshot(), timeout=60)
        for task in tasks:
            task.cancel()
    await changes.close()
    heard: list[LeaseChanged] = [received.message async for received in changes]
    assert [member.epoch for member in members] == epochs
    assert "dead" not in {change.state for change in heard} | {member.lease for member in snapshot.members}
