"""What only the real server can show: strangers, broken clients, restarts."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import nats
import pytest
from nats.aio.client import Client

import livescale.shared.bus.nats
from livescale.shared.bus.client import SturdyClient
from livescale.shared.bus.contract import Call, Context, Disconnected, Endpoint, Refusal, ServiceInfo, TooLarge, Topic
from livescale.shared.bus.nats import NatsBus
from livescale.shared.messages.membership import MetricsText
from livescale.shared.messages.registry import AskSnapshot, Named, Snapshot
from livescale.shared.messages.requests import Cancel
from livescale.shared.subjects import CANCEL, DECISION, SNAPSHOT
from tests.shared.bus.conftest import Net, RealServer
from tests.shared.bus.examples import decision

pytestmark = pytest.mark.system
ECHO: Call[Named, Named] = Call("svc.echo.say", Named, Named, queue=True, doc="says it again")
SUBJECT = "livescale.test.svc.echo.say"
LARGE: Call[Named, Named] = Call("svc.large.say", Named, Named, queue=True, doc="says more than the bus takes")
LARGE_SUBJECT = "livescale.test.svc.large.say"
INFO = ServiceInfo("echo", "echo-0", "says what it hears")
LONG: Topic[MetricsText] = Topic("test.long", MetricsText)  # a message whose length nothing but the bus bounds


async def echo(message: Named, context: Context) -> Named:
    if message.model == "bad":
        raise Refusal(404, "no such model", 5)
    return message


@pytest.fixture
async def serving(nats_net: Net) -> NatsBus:
    bus = await nats_net.connect("server")
    assert isinstance(bus, NatsBus)
    await bus.serve(INFO, [Endpoint(ECHO, echo)])
    return bus


@pytest.fixture
async def stranger(server: RealServer) -> AsyncIterator[Client]:
    """A plain nats-py client that knows nothing of us."""
    client = await nats.connect(server.url, allow_reconnect=False, connect_timeout=60)
    yield client
    await client.close()


async def test_a_person_asks_in_json_and_is_answered_in_json(serving: NatsBus, stranger: Client) -> None:
    answer = await stranger.request(SUBJECT, b'{"model": "m"}', timeout=60)
    assert json.loads(answer.data) == {"type": "Named", "model": "m"}
    assert answer.headers == {"Content-Type": "application/json"}


async def test_an_empty_request_is_one_without_fields(serving: NatsBus, stranger: Client) -> None:
    async def snapshot(message: AskSnapshot, context: Context) -> Snapshot:
        return Snapshot()

    await serving.serve(INFO, [Endpoint(SNAPSHOT, snapshot)])
    answer = await stranger.request("livescale.test.svc.registry.snapshot", timeout=60)
    assert json.loads(answer.data) == {"type": "Snapshot", "members": [], "workers": [], "hosts": [], "models": []}


async def test_a_person_is_told_that_an_answer_is_too_large(serving: NatsBus, stranger: Client) -> None:
    async def grow(message: Named, context: Context) -> Named:
        return Named(model="m" * (1 << 20))

    await serving.serve(INFO, [Endpoint(LARGE, grow)])
    answer = await stranger.request(LARGE_SUBJECT, b'{"model": "m"}', timeout=60)
    assert answer.headers is not None
    assert answer.headers["Nats-Service-Error-Code"] == "500"
    assert "1048576" in answer.headers["Nats-Service-Error"]


@pytest.mark.parametrize(
    ("data", "headers", "code", "words"),
    [
        (b"{}", {}, "400", "Named: Object missing required field `model`"),
        (b'{"model": 7}', {}, "400", "Expected `str`, got `int` - at `$.model`"),
        (b'{"model"', {}, "400", "Named: Input data was truncated"),
        (b"\xc1\xff", {}, "400", "Named: "),
        (b'{"model": "\xff"}', {}, "400", "Named: "),
        (b'{"model": "m"}', {"Timeout-Ms": "soon"}, "400", "header Timeout-Ms is not a whole number: 'soon'"),
        (b'{"model": "m"}', {"Deadline": "1000"}, "504", "the deadline passed"),
        (b'{"model": "m"}', {"Deadline": "99999999999999", "Timeout-Ms": "-5"}, "504", "the deadline passed"),
        (b'{"model": "bad"}', {}, "404", "no such model"),
    ],
)
async def test_what_is_wrong_is_said_in_the_headers(
    serving: NatsBus, stranger: Client, data: bytes, headers: dict[str, str], code: str, words: str
) -> None:
    answer = await stranger.request(SUBJECT, data, headers=headers or None, timeout=60)
    assert answer.headers is not None
    assert answer.headers["Nats-Service-Error-Code"] == code
    assert words in answer.headers["Nats-Service-Error"]


async def test_every_process_is_a_micro_service(serving: NatsBus, stranger: Client) -> None:
    await stranger.request(SUBJECT, b'{"model": "m"}', timeout=60)
    await stranger.request(SUBJECT, b'{"model": "bad"}', timeout=60)
    for subject in ("$SRV.INFO", "$SRV.INFO.echo", "$SRV.INFO.echo.echo-0"):
        info = json.loads((await stranger.request(subject, timeout=60)).data)
        assert (info["name"], info["id"], info["description"]) == ("echo", "echo-0", "says what it hears")
        assert info["endpoints"][0]["subject"] == SUBJECT
    assert (
        json.loads((await stranger.request("$SRV.PING", timeout=60)).data)["type"] == "io.nats.micro.v1.ping_response"
    )
    stats = json.loads((await stranger.request("$SRV.STATS.echo", timeout=60)).data)["endpoints"][0]
    assert (stats["num_requests"], stats["num_errors"]) == (2, 1)
    assert stats["last_error"] == "404: no such model"
    assert stats["processing_time"] > 0


async def test_garbage_is_counted_and_reading_goes_on(serving: NatsBus, stranger: Client) -> None:
    cancels = await serving.subscribe(CANCEL)
    for garbage in (b"", b"\xc1", b'{"request_id": "json where msgpack belongs"}', b"\x81\xa5model\xa1m"):
        await stranger.publish("livescale.test.svc.router.cancel", garbage)
    await stranger.flush()
    serving.publish(CANCEL, Cancel(request_id="good"))
    async with asyncio.timeout(60):
        async for received in cancels:
            assert received.message.request_id == "good"
            break
    assert serving.counts["undecodable"] == 4


async def test_the_largest_message_that_passes_the_check_passes_the_server(nats_net: Net) -> None:
    bus = await nats_net.connect("a")
    texts = await bus.subscribe(LONG)
    size = 1 << 20
    while size > 0:
        with suppress(TooLarge):
            bus.publish(LONG, MetricsText(text="x" * size))
            break
        size -= 1
    async with asyncio.timeout(60):
        async for received in texts:
            assert len(received.message.text) == size
            break
    assert bus.connected


async def test_more_than_the_queue_holds_is_dropped_and_counted(nats_net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = await nats_net.connect("a")
    assert isinstance(bus, NatsBus)
    texts = await bus.subscribe(LONG)
    monkeypatch.setattr(bus._client, "write", lambda command: False)  # a socket that takes nothing
    for _ in range(20):
        bus.publish(LONG, MetricsText(text="x" * 1_000_000))
    assert bus.counts["dropped_full"] == 20 - (16 << 20) // 1_000_000
    await bus.flush()
    await texts.close()
    assert len([received async for received in texts]) == (16 << 20) // 1_000_000


async def test_what_is_sent_in_one_turn_goes_to_the_socket_together(
    nats_net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = await nats_net.connect("a")
    assert isinstance(bus, NatsBus)
    write, written = bus._client.write, list[bytes]()

    def seen(command: bytes) -> bool:
        written.append(command)
        return write(command)

    monkeypatch.setattr(bus._client, "write", seen)
    before = bus.counts["sent"]
    bus.publish(CANCEL, Cancel(request_id="r"))
    bus.publish(CANCEL, Cancel(request_id="s"))
    assert written == []
    await asyncio.sleep(0)
    assert len(written) == 1
    assert bus.counts["sent"] == before + 2


async def test_long_messages_that_have_to_wait_and_short_ones_between_keep_their_order(nats_net: Net) -> None:
    bus = await nats_net.connect("a")
    texts = await bus.subscribe(LONG)
    said = [f"{number}" + "x" * (400_000 if number % 3 else 0) for number in range(30)]
    for text in said:
        bus.publish(LONG, MetricsText(text=text))
    assert bus.counts["dropped_full"] == 0
    await bus.flush()
    await texts.close()
    assert [received.message.text async for received in texts] == said


async def test_a_background_task_that_dies_closes_the_bus(server: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(client: SturdyClient, command: bytes) -> None:
        raise RuntimeError("nobody expects this")

    closed = asyncio.Event()
    bus = await NatsBus.connect(server.url, "test", "a", on_closed=closed.set, timeout=60)
    monkeypatch.setattr(SturdyClient, "write", lambda client, command: False)  # as if the socket were full
    monkeypatch.setattr(SturdyClient, "write_in_turn", fail)
    bus.publish(CANCEL, Cancel(request_id="r"))
    async with asyncio.timeout(60):
        await closed.wait()
    await bus.close()


async def test_a_callback_that_fails_does_not_stop_the_connection(nats_net: Net) -> None:
    bus = await nats_net.connect("a")

    def fail(connected: bool) -> None:
        raise RuntimeError("in a callback")

    bus.watch_connection(fail)
    await nats_net.down()
    await nats_net.up()
    await until_connected(bus)
    await bus.flush()


async def test_a_dead_read_loop_is_noticed_and_replaced(nats_net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livescale.shared.bus.nats, "WATCHDOG_SECONDS", 0.05)
    bus = await nats_net.connect("a")
    back = asyncio.Event()
    bus.watch_connection(lambda connected: back.set() if connected else None)
    assert isinstance(bus, NatsBus)
    reading: Any = bus._client._reading_task
    reading.cancel()
    with monkeypatch.context() as impatient:  # no longer than that: an echo that is late would be taken for lost, too
        impatient.setattr(livescale.shared.bus.nats, "FLUSH_SECONDS", 0.1)
        async with asyncio.timeout(60):
            await back.wait()
    await bus.flush()
    assert bus.counts["reconnects"] == 1


async def test_messages_and_calls_keep_their_order(nats_net: Net) -> None:
    asker, server = await nats_net.connect("a"), await nats_net.connect("b")
    seen: list[str] = []
    cancels = await server.subscribe(CANCEL)

    async def count(message: Named, context: Context) -> Named:
        await asyncio.sleep(0)
        await cancels.close()
        seen.extend([received.message.request_id async for received in cancels])
        return message

    await server.serve(INFO, [Endpoint(ECHO, count)])
    for number in range(100):
        asker.publish(CANCEL, Cancel(request_id=str(number)))
    await asker.call(ECHO, Named(model="m"), timeout=60)
    assert len(seen) == 100


async def test_key_values_survive_the_servers_restart(nats_net: Net) -> None:
    bus = await nats_net.connect("a")
    await bus.kv.put("plan.current", Named(model="m"))
    await nats_net.down()
    with pytest.raises(Disconnected):
        await bus.kv.get("plan.current", Named)
    await nats_net.up()
    await until_connected(bus)
    assert await bus.kv.get("plan.current", Named) == Named(model="m")
    with pytest.raises(ValueError, match="letters, digits"):
        await bus.kv.put("not a key", Named(model="m"))


async def test_events_are_kept_for_those_who_come_later(serving: NatsBus, stranger: Client) -> None:
    await serving.keep_events()
    await serving.keep_events()
    serving.publish(DECISION, decision("m"), model="m")
    await serving.flush()
    # The server stores beside what it delivers, so that even an echo may come first.
    events = await stranger.jetstream().subscribe("livescale.test.evt.>", ordered_consumer=True)
    kept = await events.next_msg(timeout=60)
    await events.unsubscribe()
    assert kept.subject == "livescale.test.evt.decision.m"
    assert json.loads(kept.data)["reason"] == "busy"


async def test_namespaces_do_not_hear_each_other(server: RealServer, serving: NatsBus) -> None:
    other = await NatsBus.connect(server.url, "other", "o", timeout=60)
    cancels = await serving.subscribe(CANCEL)
    other.publish(CANCEL, Cancel(request_id="theirs"))
    await other.flush()
    serving.publish(CANCEL, Cancel(request_id="ours"))
    async for received in cancels:
        assert received.message.request_id == "ours"
        break
    await other.close()


async def until_connected(bus: Any) -> None:
    back = asyncio.Event()
    bus.watch_connection(lambda connected: back.set() if connected else None)
    if bus.connected:
        back.set()
    async with asyncio.timeout(60):
        await back.wait()
