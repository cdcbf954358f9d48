"""What a reader of a topic gets, on both buses."""

import asyncio
from collections import Counter

import pytest

from livescale.shared.bus.codec import encode
from livescale.shared.bus.contract import Received
from livescale.shared.bus.subscription import QueuedSubscription
from livescale.shared.messages.membership import Beat, RouterReport, WorkerReport
from livescale.shared.messages.message import Message
from livescale.shared.messages.requests import Cancel, TokenFrame, Tokens
from livescale.shared.runtime.clock import SystemClock
from livescale.shared.runtime.rate_limited_log import RateLimitedLog
from livescale.shared.subjects import CANCEL, DECISION, HEARTBEAT, TOKENS
from tests.shared.bus.conftest import Net
from tests.shared.bus.examples import decision


async def test_a_message_arrives_with_the_values_of_its_holes(net: Net) -> None:
    sender, reader = await net.connect("a"), await net.connect("b")
    beats = await reader.subscribe(HEARTBEAT)
    sender.publish(HEARTBEAT, Beat(service="router", id="router-0", epoch=3), service="router", id="router-0")
    async for received in beats:
        assert received.message == Beat(service="router", id="router-0", epoch=3)
        assert received.holes == {"service": "router", "id": "router-0"}
        break


async def test_no_process_speaks_for_another_on_its_own_subject(net: Net) -> None:
    sender, reader = await net.connect("a"), await net.connect("b")
    beats = await reader.subscribe(HEARTBEAT)
    for false in (Beat(service="router", id="worker-0", epoch=1), RouterReport(id="worker-0", epoch=1)):
        sender.publish(HEARTBEAT, false, service="worker", id="worker-0")
    sender.publish(HEARTBEAT, WorkerReport(id="worker-1", epoch=1, state="spare"), service="worker", id="worker-0")
    sender.publish(HEARTBEAT, WorkerReport(id="worker-0", epoch=1, state="spare"), service="worker", id="worker-0")
    async with asyncio.timeout(60):
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
    await asyncio.sleep(0.05)  # until all have come; those that are dropped are not seen
    await cancels.close()
    assert [received.message.request_id async for received in cancels] == ["req-0", "req-1", "req-2"]
    assert cancels.dropped == 7


async def test_a_closed_subscription_gets_nothing_more(net: Net) -> None:
    sender, reader = await net.connect("a"), await net.connect("b")
    cancels = await reader.subscribe(CANCEL)
    await cancels.close()
    await cancels.close()
    sender.publish(CANCEL, Cancel(request_id="req-1"))
    await sender.flush()
    assert [received async for received in cancels] == []


async def test_readers_end_when_the_bus_closes(net: Net) -> None:
    bus = await net.connect("a")
    cancels = await bus.subscribe(CANCEL)

    async def read() -> list[Message]:
        return [received.message async for received in cancels]

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    await bus.close()
    assert await asyncio.wait_for(reading, 60) == []


async def test_each_message_goes_to_one_of_several_readers_and_one_that_gives_up_takes_none(net: Net) -> None:
    sender, listener = await net.connect("a"), await net.connect("b")
    cancels = await listener.subscribe(CANCEL)
    readers = [asyncio.ensure_future(anext(aiter(cancels))) for _ in range(3)]
    await asyncio.sleep(0)
    readers[0].cancel()
    for number in range(2):
        sender.publish(CANCEL, Cancel(request_id=f"req-{number}"))
    async with asyncio.timeout(60):
        came = await asyncio.gather(*readers, return_exceptions=True)
    assert isinstance(came[0], asyncio.CancelledError)
    assert [one.message.request_id for one in came[1:] if not isinstance(one, BaseException)] == ["req-0", "req-1"]


async def test_a_reader_that_is_woken_and_gives_up_wakes_the_next() -> None:
    subscription = QueuedSubscription(CANCEL, 10, Counter(), RateLimitedLog(SystemClock().now))
    readers = [asyncio.ensure_future(anext(subscription)) for _ in range(2)]
    await asyncio.sleep(0)
    subscription.deliver(CANCEL.pattern, encode(Cancel(request_id="req-0"), json=CANCEL.json))
    readers[0].cancel()
    async with asyncio.timeout(60):
        assert (await readers[1]).message.request_id == "req-0"


async def test_each_message_is_taken_in_order_until_the_subscription_is_closed(net: Net) -> None:
    sender, listener = await net.connect("a"), await net.connect("b")
    cancels = await listener.subscribe(CANCEL)
    taken, last = list[str](), asyncio.Event()

    def take(received: Received[Cancel]) -> None:
        taken.append(received.message.request_id)
        if len(taken) == 6:
            last.set()

    for number in range(3):
        sender.publish(CANCEL, Cancel(request_id=f"req-{number}"))
    reading = asyncio.create_task(cancels.each(take))
    await asyncio.sleep(0)
    for number in range(3, 6):
        sender.publish(CANCEL, Cancel(request_id=f"req-{number}"))
    async with asyncio.timeout(60):
        await last.wait()
        await cancels.close()
        await reading
    assert taken == [f"req-{number}" for number in range(6)]


async def test_what_a_taker_raises_ends_its_reading() -> None:
    subscription = QueuedSubscription(CANCEL, 10, Counter(), RateLimitedLog(SystemClock().now))
    taken = list[str]()

    def take(received: Received[Cancel]) -> None:
        taken.append(received.message.request_id)
        raise ValueError("not this one")

    reading = asyncio.create_task(subscription.each(take))
    await asyncio.sleep(0)
    for number in range(2):
        subscription.deliver(CANCEL.pattern, cancelled(number))
    with pytest.raises(ValueError, match="not this one"):
        async with asyncio.timeout(60):
            await reading
    assert taken == ["req-0"]


async def test_a_taker_that_is_cancelled_takes_no_more() -> None:
    subscription = QueuedSubscription(CANCEL, 10, Counter(), RateLimitedLog(SystemClock().now))
    taken = list[str]()
    reading = asyncio.create_task(subscription.each(lambda received: taken.append(received.message.request_id)))
    await asyncio.sleep(0)
    subscription.deliver(CANCEL.pattern, cancelled(0))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert taken == []
    subscription.deliver(CANCEL.pattern, cancelled(1))
    assert [(await anext(subscription)).message.request_id for _ in range(2)] == ["req-0", "req-1"]


@pytest.mark.parametrize("by_loop", [True, False])
async def test_a_taker_has_the_turns_of_a_loop(by_loop: bool) -> None:
    """Between a message and its reader comes what was ready before it, and nothing that is ready only afterwards."""
    subscription = QueuedSubscription(CANCEL, 10, Counter(), RateLimitedLog(SystemClock().now))
    order = list[str]()

    async def read() -> None:
        async for received in subscription:
            order.append(received.message.request_id)

    each = subscription.each(lambda received: order.append(received.message.request_id))
    reading = asyncio.create_task(read() if by_loop else each)
    if by_loop:
        each.close()
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    loop.call_soon(order.append, "before")
    subscription.deliver(CANCEL.pattern, cancelled(0))
    loop.call_soon(order.append, "between")
    subscription.deliver(CANCEL.pattern, cancelled(1))  # is read with the first
    loop.call_soon(order.append, "after")
    assert order == []
    await asyncio.sleep(0)
    reading.cancel()
    assert order == ["before", "req-0", "req-1", "between", "after"]
    await asyncio.gather(reading, return_exceptions=True)


def cancelled(number: int) -> bytes:
    return encode(Cancel(request_id=f"req-{number}"), json=CANCEL.json)
