"""A server that is there and does nothing, as where it gets no CPU."""

import asyncio

import pytest

import livescale.shared.bus.nats
from livescale.shared.bus.contract import CallTimeout, Context, Endpoint, ServiceInfo
from livescale.shared.messages.registry import AskSnapshot, Snapshot
from livescale.shared.messages.requests import Cancel
from livescale.shared.subjects import CANCEL, SNAPSHOT
from tests.shared.bus.conftest import Net, RealServer

pytestmark = pytest.mark.system
INFO = ServiceInfo("registry", "registry-0", "knows nothing")


async def tell_nothing(ask: AskSnapshot, context: Context) -> Snapshot:
    return Snapshot()


async def test_a_server_that_does_nothing_for_a_while_is_waited_for(
    nats_net: Net, server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that starts meanwhile need not start again."""
    bus, sender = await nats_net.connect("a"), await nats_net.connect("b")
    server.freeze()
    with monkeypatch.context() as impatient:
        impatient.setattr(livescale.shared.bus.nats, "FLUSH_SECONDS", 0.05)
        subscribing = asyncio.create_task(bus.subscribe(CANCEL))
        serving = asyncio.create_task(bus.serve(INFO, [Endpoint(SNAPSHOT, tell_nothing)]))
        await asyncio.sleep(0.3)  # of real time: longer than a flush may take, and the server is stopped
    assert not subscribing.done()
    assert not serving.done()
    server.thaw()
    async with asyncio.timeout(60):
        cancels = await subscribing
        await serving
        sender.publish(CANCEL, Cancel(request_id="r"))
        async for received in cancels:
            assert received.message.request_id == "r"
            break
        assert await sender.call(SNAPSHOT, AskSnapshot(), timeout=60) == Snapshot()


async def test_nobody_waits_for_ever_for_a_server_that_does_nothing(
    nats_net: Net, server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = await nats_net.connect("a")
    monkeypatch.setattr(livescale.shared.bus.nats, "FLUSH_SECONDS", 0.05)
    monkeypatch.setattr(livescale.shared.bus.nats, "SETTLE_SECONDS", 0.2)
    server.freeze()
    try:
        with pytest.raises(CallTimeout, match="the NATS server did not answer"):
            await bus.subscribe(CANCEL)
    finally:
        server.thaw()
