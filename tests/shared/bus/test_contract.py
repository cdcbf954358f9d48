"""The contract of the bus, kept by the in-process twin and by NATS alike."""

import asyncio
from typing import Any

import pytest

from livescale.shared.bus.contract import (
    Ack,
    Context,
    Disconnected,
    Endpoint,
    ServiceAbsent,
    TooLarge,
)
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import Named, Register
from livescale.shared.messages.requests import Cancel, TokenFrame, Tokens
from livescale.shared.subjects import CANCEL, TOKENS
from tests.shared.bus.conftest import Net
from tests.shared.bus.examples import ECHO, INFO, echo, serve


async def test_what_was_drained_or_closed_can_still_be_withdrawn(net: Net) -> None:
    server: Any = await net.connect("a")  # both have `drain`, for the end of a process
    other = await net.connect("b")
    withdraw, late = await server.serve(INFO, [Endpoint(ECHO, echo)]), await other.serve(INFO, [Endpoint(ECHO, echo)])
    await server.drain()
    await withdraw()
    await other.close()
    await late()


async def test_what_was_published_before_flush_has_arrived_after_it(net: Net) -> None:
    sender, reader = await net.connect("a"), await net.connect("b")
    cancels = await reader.subscribe(CANCEL)
    sender.publish(CANCEL, Cancel(request_id="req-1"))
    await sender.flush()
    await reader.flush()
    async with asyncio.timeout(60):
        async for received in cancels:
            assert received.message.request_id == "req-1"
            break


async def test_too_much_is_refused_before_it_is_sent_and_the_bus_lives_on(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    await serve(server)
    with pytest.raises(TooLarge, match=r"svc.echo.say.*1048576"):
        await asker.call(ECHO, Named(model="x" * (1 << 20)), timeout=60)
    frame = TokenFrame(worker="w", step=0, rows=[Tokens(request_id="r" * (1 << 20), index=0, token_ids=[])])
    with pytest.raises(TooLarge, match=r"tok.g"):
        asker.publish(TOKENS, frame, gateway="g")
    # Just under the limit without headers, over it with them.
    with pytest.raises(TooLarge):
        await asker.call(ECHO, Named(model="x" * ((1 << 20) - 60)), timeout=60)
    assert await asker.call(ECHO, Named(model="m"), timeout=60) == Named(model="m")


async def test_a_pending_call_fails_when_the_server_dies(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    arrived = asyncio.Event()

    async def never(message: Named, context: Context) -> Named:
        arrived.set()
        await asyncio.Event().wait()
        return message

    await serve(server, never)
    pending = asyncio.create_task(asker.call(ECHO, Named(model="m"), timeout=600))
    async with asyncio.timeout(60):  # the call's own deadline is much later
        await arrived.wait()
        await net.down()
        with pytest.raises(Disconnected):
            await pending
    assert not asker.connected
    with pytest.raises(Disconnected):
        await asker.call(ECHO, Named(model="m"), timeout=60)
    asker.publish(CANCEL, Cancel(request_id="lost"))
    await net.up()


async def test_after_the_server_is_back_everything_goes_on(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    await serve(server)
    cancels = await server.subscribe(CANCEL)
    changes: list[bool] = []
    back = {bus: asyncio.Event() for bus in ("asker", "server")}
    asker.watch_connection(lambda connected: back["asker"].set() if connected else None)
    server.watch_connection(lambda connected: back["server"].set() if connected else None)
    asker.watch_connection(changes.append)
    await net.down()
    asker.publish(CANCEL, Cancel(request_id="dropped"))
    await net.up()
    async with asyncio.timeout(60):
        await asyncio.gather(*(event.wait() for event in back.values()))
    assert changes == [False, True]
    assert await asker.call(ECHO, Named(model="m"), timeout=60) == Named(model="m")
    asker.publish(CANCEL, Cancel(request_id="after"))
    async with asyncio.timeout(60):
        async for received in cancels:
            assert received.message.request_id == "after"
            break


async def test_closing_answers_what_is_in_hand(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")

    arrived = asyncio.Semaphore(0)

    async def slow(message: Named, context: Context) -> Named:
        arrived.release()
        await asyncio.sleep(0.1)  # longer than it takes to close
        return message

    await serve(server, slow)
    asked = [asyncio.create_task(asker.call(ECHO, Named(model=str(n)), timeout=60)) for n in range(20)]
    for _ in asked:
        await arrived.acquire()
    await server.close()
    await server.close()
    assert [answer.model for answer in await asyncio.gather(*asked)] == [str(n) for n in range(20)]
    with pytest.raises(ServiceAbsent):
        await asker.call(ECHO, Named(model="m"), timeout=60)


async def test_a_missing_or_unknown_hole_is_named(net: Net) -> None:
    bus = await net.connect("a")
    with pytest.raises(ValueError, match="needs gateway"):
        bus.publish(TOKENS, TokenFrame(worker="w", step=0, rows=[]))
    with pytest.raises(ValueError, match="has no wrker"):
        await bus.subscribe(TOKENS, wrker="x")


async def test_key_values_are_kept_listed_and_deleted(net: Net) -> None:
    bus = await net.connect("a")
    specs = {name: Register(spec=ModelSpec(name=name, path="/m")) for name in ("one", "two")}
    for name, spec in specs.items():
        await bus.kv.put(f"models.{name}", spec)
    await bus.kv.put("plan.current", Ack())
    assert await bus.kv.get("models.one", Register) == specs["one"]
    assert await bus.kv.get("models.three", Register) is None
    assert await bus.kv.list("models", Register) == {f"models.{name}": spec for name, spec in specs.items()}
    await bus.kv.delete("models.one")
    await bus.kv.delete("models.one")
    assert await bus.kv.get("models.one", Register) is None
    assert list(await bus.kv.list("models", Register)) == ["models.two"]
