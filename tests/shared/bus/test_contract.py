"""The contract of the bus, kept by the in-process twin and by NATS alike."""

import asyncio
from typing import Any

import pytest

from livescale.shared.bus.contract import (
    Bus,
    BusError,
    Call,
    CallTimeout,
    Context,
    Disconnected,
    Endpoint,
    Refusal,
    ServiceAbsent,
    ServiceInfo,
    TooLarge,
)
from livescale.shared.messages.membership import Beat, RouterReport, WorkerReport
from livescale.shared.messages.message import Ack, Message
from livescale.shared.messages.parameters import ModelSpec
from livescale.shared.messages.registry import Named, Register
from livescale.shared.messages.requests import Cancel, Replay, TokenFrame, Tokens
from livescale.shared.subjects import CANCEL, DECISION, HEARTBEAT, REPLAY, TOKENS
from tests.shared.bus.conftest import Net
from tests.shared.bus.examples import decision

ECHO: Call[Named, Named] = Call("svc.echo.say", Named, Named, queue=True, doc="says it again")
ASK_ONE: Call[Named, Named] = Call("worker.{id}.say", Named, Named)
INFO = ServiceInfo("echo", "echo-0", "says what it hears")


async def echo(message: Named, context: Context) -> Named:
    return message


async def serve(bus: Bus, handler: Any = echo, limit: int = 1024) -> None:
    await bus.serve(INFO, [Endpoint(ECHO, handler, limit=limit)])


async def test_what_is_withdrawn_is_answered_to_its_end_and_then_by_nobody(net: Net) -> None:
    server, caller = await net.connect("a"), await net.connect("b")
    begun, release = asyncio.Event(), asyncio.Event()

    async def slowly(message: Named, context: Context) -> Named:
        begun.set()
        await release.wait()
        return message

    withdraw = await server.serve(INFO, [Endpoint(ECHO, slowly)])
    asking = asyncio.create_task(caller.call(ECHO, Named(model="m"), timeout=5.0))
    await begun.wait()
    withdrawing = asyncio.ensure_future(withdraw())
    await asyncio.sleep(0.1)
    release.set()
    await withdrawing
    assert await asking == Named(model="m")
    await server.flush()
    with pytest.raises(ServiceAbsent):
        await caller.call(ECHO, Named(model="m"), timeout=5.0)
    await serve(server)
    assert await caller.call(ECHO, Named(model="m"), timeout=5.0) == Named(model="m")


async def test_what_was_drained_or_closed_can_still_be_withdrawn(net: Net) -> None:
    server: Any = await net.connect("a")  # both have `drain`, for the end of a process
    other = await net.connect("b")
    withdraw, late = await server.serve(INFO, [Endpoint(ECHO, echo)]), await other.serve(INFO, [Endpoint(ECHO, echo)])
    await server.drain()
    await withdraw()
    await other.close()
    await late()


async def test_a_message_arrives_with_the_values_of_its_holes(net: Net) -> None:
    sender, reader = await net.connect("a"), await net.connect("b")
    beats = await reader.subscribe(HEARTBEAT)
    sender.publish(HEARTBEAT, Beat(service="router", id="router-0", epoch=3), service="router", id="router-0")
    async for received in beats:
        assert received.message == Beat(service="router", id="router-0", epoch=3)
        assert received.holes == {"service": "router", "id": "router-0"}
        break


async def test_nobody_speaks_for_another_on_a_subject_of_his_own(net: Net) -> None:
    sender, reader = await net.connect("a"), await net.connect("b")
    beats = await reader.subscribe(HEARTBEAT)
    for false in (Beat(service="router", id="worker-0", epoch=1), RouterReport(id="worker-0", epoch=1)):
        sender.publish(HEARTBEAT, false, service="worker", id="worker-0")
    sender.publish(HEARTBEAT, WorkerReport(id="worker-1", epoch=1, state="spare"), service="worker", id="worker-0")
    sender.publish(HEARTBEAT, WorkerReport(id="worker-0", epoch=1, state="spare"), service="worker", id="worker-0")
    async with asyncio.timeout(5):
        assert (await anext(aiter(beats))).message.id == "worker-0"
    assert reader.counts["undecodable"] == 3


async def test_model_names_with_dots_and_slashes_are_one_hole(net: Net) -> None:
    sender, reader = await net.connect("a"), await net.connect("b")
    decisions = await reader.subscribe(DECISION)
    sender.publish(DECISION, decision("Qwen/Qwen2.5-7B *"), model="Qwen/Qwen2.5-7B *")
    async for received in decisions:
        assert received.holes == {"model": "Qwen/Qwen2.5-7B *"}
        break


async def test_a_filled_hole_listens_to_nobody_else(net: Net) -> None:
    sender, reader = await net.connect("a"), await net.connect("b")
    frames = await reader.subscribe(TOKENS, gateway="gateway-1")
    for gateway in ("gateway-0", "gateway-1"):
        row = Tokens(request_id=gateway, index=0, token_ids=[1])
        sender.publish(TOKENS, TokenFrame(worker="worker-0", step=1, rows=[row]), gateway=gateway)
    async for received in frames:
        assert isinstance(received.message, TokenFrame)
        assert received.message.rows[0].request_id == "gateway-1"
        break


async def test_messages_keep_their_order(net: Net) -> None:
    sender, reader = await net.connect("a"), await net.connect("b")
    cancels = await reader.subscribe(CANCEL)
    for number in range(200):
        sender.publish(CANCEL, Cancel(request_id=f"req-{number}"))
    seen: list[str] = []
    async for received in cancels:
        seen.append(received.message.request_id)
        if len(seen) == 200:
            break
    assert seen == [f"req-{number}" for number in range(200)]


async def test_a_reader_that_is_too_slow_loses_the_newest_and_knows_how_many(net: Net) -> None:
    sender, reader = await net.connect("a"), await net.connect("b")
    cancels = await reader.subscribe(CANCEL, limit=3)
    for number in range(10):
        sender.publish(CANCEL, Cancel(request_id=f"req-{number}"))
    await sender.flush()
    await reader.flush()
    await asyncio.sleep(0.05)
    await cancels.close()
    assert [received.message.request_id async for received in cancels] == ["req-0", "req-1", "req-2"]
    assert cancels.dropped == 7


async def test_what_was_published_before_flush_has_arrived_after_it(net: Net) -> None:
    sender, reader = await net.connect("a"), await net.connect("b")
    cancels = await reader.subscribe(CANCEL)
    sender.publish(CANCEL, Cancel(request_id="req-1"))
    await sender.flush()
    await reader.flush()
    async with asyncio.timeout(0.5):
        async for received in cancels:
            assert received.message.request_id == "req-1"
            break


async def test_a_closed_subscription_gets_nothing_more(net: Net) -> None:
    sender, reader = await net.connect("a"), await net.connect("b")
    cancels = await reader.subscribe(CANCEL)
    await cancels.close()
    await cancels.close()
    sender.publish(CANCEL, Cancel(request_id="req-1"))
    await sender.flush()
    assert [received async for received in cancels] == []


async def test_a_call_is_answered(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    await serve(server)
    assert await asker.call(ECHO, Named(model="m"), timeout=5) == Named(model="m")


async def test_a_directed_call_reaches_the_process_it_names(net: Net) -> None:
    asker = await net.connect("a")
    for id in ("worker-0", "worker-1"):
        bus = await net.connect(id)

        async def say(message: Named, context: Context, id: str = id) -> Named:
            return Named(model=id)

        await bus.serve(ServiceInfo("worker", id, "a worker"), [Endpoint(ASK_ONE, say, {"id": id})])
    assert await asker.call(ASK_ONE, Named(model="?"), timeout=5, id="worker-1") == Named(model="worker-1")


async def test_of_a_queue_group_one_process_answers(net: Net) -> None:
    asker = await net.connect("a")
    calls: list[int] = []
    for number in range(3):
        bus = await net.connect(f"s{number}")

        async def say(message: Named, context: Context, number: int = number) -> Named:
            calls.append(number)
            return message

        await serve(bus, say)
    for _ in range(30):
        await asker.call(ECHO, Named(model="m"), timeout=5)
    assert len(calls) == 30
    assert len(set(calls)) > 1


async def test_nobody_there_is_known_at_once(net: Net) -> None:
    asker = await net.connect("a")
    with pytest.raises(ServiceAbsent, match="worker-9"):
        await asker.call(REPLAY, Replay(request_id="r", index=0, gateway="g"), timeout=5, id="worker-9")


async def test_no_answer_in_time_is_a_timeout(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")

    async def sleepy(message: Named, context: Context) -> Named:
        await asyncio.sleep(0.2)
        return message

    await serve(server, sleepy)
    with pytest.raises((CallTimeout, Refusal)):
        await asker.call(ECHO, Named(model="m"), timeout=0.05)


async def test_a_refusal_travels_with_its_code_and_retry_time(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")

    async def refuse(message: Named, context: Context) -> Named:
        raise Refusal(429, "queue full: 7 wäit\nfor a while", retry_after_ms=250)

    await serve(server, refuse)
    with pytest.raises(Refusal) as refused:
        await asker.call(ECHO, Named(model="m"), timeout=5)
    assert (refused.value.code, refused.value.retry_after_ms) == (429, 250)
    assert refused.value.message.startswith("queue full: 7 wäit")


async def test_an_unexpected_error_is_500_and_the_server_goes_on(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")

    async def fail(message: Named, context: Context) -> Named:
        if message.model == "bad":
            raise KeyError("secret")
        return message

    await serve(server, fail)
    with pytest.raises(Refusal, match="500: KeyError"):
        await asker.call(ECHO, Named(model="bad"), timeout=5)
    assert await asker.call(ECHO, Named(model="good"), timeout=5) == Named(model="good")


@pytest.mark.parametrize(
    ("error", "code"),
    [(ServiceAbsent("no host"), 503), (CallTimeout("slow host"), 504), (Refusal(404, "no file"), 404)],
)
async def test_the_failure_of_someone_the_server_had_to_ask_keeps_its_meaning(
    net: Net, error: BusError, code: int
) -> None:
    asker, server = await net.connect("a"), await net.connect("b")

    async def ask_further(message: Named, context: Context) -> Named:
        raise error

    await serve(server, ask_further)
    with pytest.raises(Refusal, match=f"{code}: "):
        await asker.call(ECHO, Named(model="m"), timeout=5)


async def test_a_request_of_the_wrong_type_is_400_and_names_the_field(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    await serve(server)
    wrong: Call[Cancel, Named] = Call(ECHO.pattern, Cancel, Named, queue=True)
    with pytest.raises(Refusal, match=r"400: Named: .*type"):
        await asker.call(wrong, Cancel(request_id="r"), timeout=5)


async def test_the_context_travels_and_the_earlier_deadline_counts(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    seen: list[Context] = []

    async def note(message: Named, context: Context) -> Named:
        seen.append(context)
        return message

    await serve(server, note)
    context = Context(deadline=2_000_000_000.0, epoch=7, request_id="req-1", traceparent="00-a-b-01")
    await asker.call(ECHO, Named(model="m"), timeout=5, context=context)
    assert (seen[0].epoch, seen[0].request_id, seen[0].traceparent) == (7, "req-1", "00-a-b-01")
    assert seen[0].deadline is not None
    assert seen[0].deadline < 2_000_000_000.0


async def test_a_deadline_that_has_passed_is_not_even_asked(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    await serve(server)
    with pytest.raises(CallTimeout, match="passed"):
        await asker.call(ECHO, Named(model="m"), timeout=5, context=Context(deadline=1.0))


async def test_calls_run_concurrently_and_those_over_the_limit_are_429_at_once(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    go = asyncio.Event()

    async def hold(message: Named, context: Context) -> Named:
        await go.wait()
        return message

    await serve(server, hold, limit=2)
    held = [asyncio.create_task(asker.call(ECHO, Named(model=str(n)), timeout=5)) for n in range(2)]
    await asyncio.sleep(0.05)
    with pytest.raises(Refusal) as refused:
        await asker.call(ECHO, Named(model="third"), timeout=5)
    assert refused.value.code == 429
    assert refused.value.retry_after_ms
    go.set()
    assert [answer.model for answer in await asyncio.gather(*held)] == ["0", "1"]


async def test_too_much_is_refused_before_it_is_sent_and_the_bus_lives_on(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    await serve(server)
    with pytest.raises(TooLarge, match=r"svc.echo.say.*1048576"):
        await asker.call(ECHO, Named(model="x" * (1 << 20)), timeout=5)
    frame = TokenFrame(worker="w", step=0, rows=[Tokens(request_id="r" * (1 << 20), index=0, token_ids=[])])
    with pytest.raises(TooLarge, match=r"tok.g"):
        asker.publish(TOKENS, frame, gateway="g")
    # Just under the limit without headers, over it with them.
    with pytest.raises(TooLarge):
        await asker.call(ECHO, Named(model="x" * ((1 << 20) - 60)), timeout=5)
    assert await asker.call(ECHO, Named(model="m"), timeout=5) == Named(model="m")


async def test_an_answer_that_is_too_large_is_500(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")

    async def grow(message: Named, context: Context) -> Named:
        return Named(model="x" * (1 << 20))

    await serve(server, grow)
    with pytest.raises(Refusal, match=r"500.*1048576"):
        await asker.call(ECHO, Named(model="m"), timeout=5)


async def test_a_pending_call_fails_when_the_server_dies(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")

    async def never(message: Named, context: Context) -> Named:
        await asyncio.sleep(30)
        return message

    await serve(server, never)
    pending = asyncio.create_task(asker.call(ECHO, Named(model="m"), timeout=1))
    await asyncio.sleep(0.05)
    started = asyncio.get_running_loop().time()
    await net.down()
    with pytest.raises(Disconnected):
        await pending
    assert asyncio.get_running_loop().time() - started < 0.5
    assert not asker.connected
    with pytest.raises(Disconnected):
        await asker.call(ECHO, Named(model="m"), timeout=2)
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
    async with asyncio.timeout(5):
        await asyncio.gather(*(event.wait() for event in back.values()))
    assert changes == [False, True]
    assert await asker.call(ECHO, Named(model="m"), timeout=5) == Named(model="m")
    asker.publish(CANCEL, Cancel(request_id="after"))
    async with asyncio.timeout(2):
        async for received in cancels:
            assert received.message.request_id == "after"
            break


async def test_closing_answers_what_is_in_hand(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")

    async def slow(message: Named, context: Context) -> Named:
        await asyncio.sleep(0.1)
        return message

    await serve(server, slow)
    asked = [asyncio.create_task(asker.call(ECHO, Named(model=str(n)), timeout=2)) for n in range(20)]
    await asyncio.sleep(0.05)
    await server.close()
    await server.close()
    assert [answer.model for answer in await asyncio.gather(*asked)] == [str(n) for n in range(20)]
    with pytest.raises(ServiceAbsent):
        await asker.call(ECHO, Named(model="m"), timeout=5)


async def test_readers_end_when_the_bus_closes(net: Net) -> None:
    bus = await net.connect("a")
    cancels = await bus.subscribe(CANCEL)

    async def read() -> list[Message]:
        return [received.message async for received in cancels]

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    await bus.close()
    assert await asyncio.wait_for(reading, 1) == []


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
