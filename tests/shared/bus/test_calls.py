"""Asking and answering, on both buses."""

import asyncio
import pickle
from random import Random

import pytest

from livescale.shared.bus.contract import (
    BusError,
    Call,
    CallTimeout,
    Context,
    Endpoint,
    Refusal,
    ServiceAbsent,
    ServiceInfo,
)
from livescale.shared.messages.membership import Member
from livescale.shared.messages.registry import AskSnapshot, Named, Snapshot
from livescale.shared.messages.requests import Cancel, Replay
from livescale.shared.subjects import REPLAY, SNAPSHOT
from tests.shared.bus.conftest import Net
from tests.shared.bus.examples import ASK_ONE, ECHO, INFO, serve


async def test_who_stops_withdrawing_gives_up_what_is_not_answered_yet(net: Net) -> None:
    server, caller = await net.connect("a"), await net.connect("b")
    begun, ended = asyncio.Event(), asyncio.Event()

    async def never(message: Named, context: Context) -> Named:
        begun.set()
        try:
            await asyncio.Event().wait()
            return message
        finally:
            ended.set()

    withdraw = await server.serve(INFO, [Endpoint(ECHO, never)])
    asking = asyncio.create_task(caller.call(ECHO, Named(model="m"), timeout=60))
    await begun.wait()
    withdrawing = asyncio.ensure_future(withdraw())
    await asyncio.sleep(0.1)
    withdrawing.cancel()
    await asyncio.wait_for(ended.wait(), 1.0)
    asking.cancel()
    await asyncio.wait([asking, withdrawing])


async def test_what_is_withdrawn_is_answered_to_its_end_and_then_by_nobody(net: Net) -> None:
    server, caller = await net.connect("a"), await net.connect("b")
    begun, release = asyncio.Event(), asyncio.Event()

    async def slowly(message: Named, context: Context) -> Named:
        begun.set()
        await release.wait()
        return message

    withdraw = await server.serve(INFO, [Endpoint(ECHO, slowly)])
    asking = asyncio.create_task(caller.call(ECHO, Named(model="m"), timeout=60))
    await begun.wait()
    withdrawing = asyncio.ensure_future(withdraw())
    await asyncio.sleep(0.1)  # time in which it would end too early
    release.set()
    await withdrawing
    assert await asking == Named(model="m")
    await server.flush()
    with pytest.raises(ServiceAbsent):
        await caller.call(ECHO, Named(model="m"), timeout=60)
    await serve(server)
    assert await caller.call(ECHO, Named(model="m"), timeout=60) == Named(model="m")


async def test_a_call_is_answered(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    await serve(server)
    assert await asker.call(ECHO, Named(model="m"), timeout=60) == Named(model="m")


async def test_a_directed_call_reaches_the_process_it_names(net: Net) -> None:
    asker = await net.connect("a")
    for id in ("worker-0", "worker-1"):
        bus = await net.connect(id)

        async def say(message: Named, context: Context, id: str = id) -> Named:
            return Named(model=id)

        await bus.serve(ServiceInfo("worker", id, "a worker"), [Endpoint(ASK_ONE, say, {"id": id})])
    assert await asker.call(ASK_ONE, Named(model="?"), timeout=60, id="worker-1") == Named(model="worker-1")


async def test_one_process_of_a_queue_group_answers(net: Net) -> None:
    asker = await net.connect("a")
    calls: list[int] = []
    for number in range(3):
        bus = await net.connect(f"s{number}")

        async def say(message: Named, context: Context, number: int = number) -> Named:
            calls.append(number)
            return message

        await serve(bus, say)
    for _ in range(30):
        await asker.call(ECHO, Named(model="m"), timeout=60)
    assert len(calls) == 30
    assert len(set(calls)) > 1


async def test_the_absence_of_a_service_is_known_at_once(net: Net) -> None:
    asker = await net.connect("a")
    with pytest.raises(ServiceAbsent, match="worker-9"):
        await asker.call(REPLAY, Replay(request_id="r", index=0, gateway="g"), timeout=60, id="worker-9")


async def test_no_answer_in_time_is_a_timeout(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")

    async def sleepy(message: Named, context: Context) -> Named:
        await asyncio.sleep(0.2)  # longer than the caller waits
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
        await asker.call(ECHO, Named(model="m"), timeout=60)
    assert (refused.value.code, refused.value.retry_after_ms) == (429, 250)
    assert refused.value.message.startswith("queue full: 7 wäit")


async def test_an_unexpected_error_is_500_and_the_server_goes_on(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")

    async def fail(message: Named, context: Context) -> Named:
        if message.model == "bad":
            raise KeyError("secret")
        return message

    await serve(server, fail)
    with pytest.raises(Refusal, match=r"500: the service failed while it answered svc\.echo\.say"):
        await asker.call(ECHO, Named(model="bad"), timeout=60)
    assert await asker.call(ECHO, Named(model="good"), timeout=60) == Named(model="good")


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
        await asker.call(ECHO, Named(model="m"), timeout=60)


async def test_a_request_of_the_wrong_type_is_400_and_names_the_field(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    await serve(server)
    wrong: Call[Cancel, Named] = Call(ECHO.pattern, Cancel, Named, queue=True)
    with pytest.raises(Refusal, match=r"400: Named: .*type"):
        await asker.call(wrong, Cancel(request_id="r"), timeout=60)


async def test_the_context_travels_and_the_earlier_deadline_counts(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    seen: list[Context] = []

    async def note(message: Named, context: Context) -> Named:
        seen.append(context)
        return message

    await serve(server, note)
    context = Context(deadline=2_000_000_000.0, epoch=7, request_id="req-1", traceparent="00-a-b-01")
    await asker.call(ECHO, Named(model="m"), timeout=60, context=context)
    assert (seen[0].epoch, seen[0].request_id, seen[0].traceparent) == (7, "req-1", "00-a-b-01")
    assert seen[0].deadline is not None
    assert seen[0].deadline < 2_000_000_000.0


async def test_a_deadline_that_has_passed_is_not_even_asked(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    await serve(server)
    with pytest.raises(CallTimeout, match="passed"):
        await asker.call(ECHO, Named(model="m"), timeout=60, context=Context(deadline=1.0))


async def test_calls_run_concurrently_and_those_over_the_limit_are_429_at_once(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    go = asyncio.Event()

    async def hold(message: Named, context: Context) -> Named:
        await go.wait()
        return message

    await serve(server, hold, limit=2)
    held = [asyncio.create_task(asker.call(ECHO, Named(model=str(n)), timeout=60)) for n in range(2)]
    await asyncio.sleep(0.05)  # until both have arrived
    with pytest.raises(Refusal) as refused:
        await asker.call(ECHO, Named(model="third"), timeout=60)
    assert refused.value.code == 429
    assert refused.value.retry_after_ms
    go.set()
    assert [answer.model for answer in await asyncio.gather(*held)] == ["0", "1"]


async def test_an_answer_that_is_too_large_is_500(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")

    async def grow(message: Named, context: Context) -> Named:
        return Named(model=Random(1).randbytes(1 << 20).hex())

    await serve(server, grow)
    with pytest.raises(Refusal, match=r"500.*1048576"):
        await asker.call(ECHO, Named(model="m"), timeout=60)


async def test_an_answer_that_repeats_itself_may_be_larger_than_the_bus_takes(net: Net) -> None:
    asker, server = await net.connect("a"), await net.connect("b")
    worker = Member(service="worker", id="w", pid=1, host="h", epoch=1, lease="alive", address=bytes(1000))
    picture = Snapshot(members=[worker] * 2000)

    async def answer(message: AskSnapshot, context: Context) -> Snapshot:
        return picture

    await server.serve(INFO, [Endpoint(SNAPSHOT, answer)])
    assert await asker.call(SNAPSHOT, AskSnapshot(), timeout=60) == picture


def test_a_refusal_passes_between_processes() -> None:
    refused = pickle.loads(pickle.dumps(Refusal(429, "later", retry_after_ms=100)))
    assert (str(refused), refused.code, refused.message, refused.retry_after_ms) == ("429: later", 429, "later", 100)
