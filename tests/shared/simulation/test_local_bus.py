"""What the in-process twin adds: faults on demand, and the same run every time."""

import asyncio

import pytest

from livescale.shared.bus.codec import Undecodable
from livescale.shared.bus.contract import (
    Call,
    CallTimeout,
    Context,
    Disconnected,
    Endpoint,
    Received,
    Refusal,
    ServiceInfo,
)
from livescale.shared.messages.membership import Beat, WorkerReport
from livescale.shared.messages.registry import Named
from livescale.shared.messages.requests import Cancel, TokenFrame, Tokens
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import CANCEL, HEARTBEAT, TOKENS
from tests.clocks import LoopClock

ECHO: Call[Named, Named] = Call("svc.echo.say", Named, Named, queue=True)
CLOCK = LoopClock(epoch=1_000_000.0)


async def busy_system() -> list[tuple[float, str]]:
    """Three servers, ten clients, different speeds: which server answered which client, and when."""
    broker, seen = LocalBroker(CLOCK), list[tuple[float, str]]()
    buses = [broker.connect() for _ in range(4)]
    for number, bus in enumerate(buses[:3]):

        async def say(message: Named, context: Context, number: int = number) -> Named:
            await asyncio.sleep(0.1 * (number + 1))
            seen.append((CLOCK.now(), f"{number} answers {message.model}"))
            return message

        await bus.serve(ServiceInfo("echo", f"echo-{number}", "echo"), [Endpoint(ECHO, say)])

    async def ask(number: int) -> None:
        for turn in range(5):
            answer = await buses[3].call(ECHO, Named(model=f"{number}.{turn}"), timeout=5)
            seen.append((CLOCK.now(), f"{answer.model} came back"))

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(ask(number))
    for bus in buses:
        await bus.close()
    return seen


def test_two_runs_are_the_same_run() -> None:
    first = virtual_time.run(busy_system())
    assert len(first) == 100
    assert virtual_time.run(busy_system()) == first


def test_a_lost_request_is_a_timeout() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK, lose=lambda subject: subject == ECHO.pattern)
        asker, server = broker.connect(), broker.connect()

        async def say(message: Named, context: Context) -> Named:
            return message

        await server.serve(ServiceInfo("echo", "echo-0", "echo"), [Endpoint(ECHO, say)])
        with pytest.raises(CallTimeout):
            await asker.call(ECHO, Named(model="m"), timeout=2)
        assert CLOCK.now() == pytest.approx(2)

    virtual_time.run(main())


def test_a_handler_that_outlives_its_callers_deadline_is_stopped() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        asker, server = broker.connect(), broker.connect()
        stopped: list[float] = []

        async def hang(message: Named, context: Context) -> Named:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append(CLOCK.now())
            return message

        await server.serve(ServiceInfo("echo", "echo-0", "echo"), [Endpoint(ECHO, hang)])
        with pytest.raises((CallTimeout, Refusal)):
            await asker.call(ECHO, Named(model="m"), timeout=3)
        await asyncio.sleep(1)
        assert stopped == [pytest.approx(3)]

    virtual_time.run(main())


async def test_a_message_of_the_wrong_type_is_its_senders_mistake() -> None:
    bus = LocalBroker().connect()
    with pytest.raises(Undecodable, match="type"):
        bus.publish(CANCEL, Named(model="m"))  # type: ignore[misc]
    wrong = Beat(service="router", id="r", epoch="one")  # type: ignore[arg-type]
    with pytest.raises(Undecodable, match="epoch"):
        bus.publish(HEARTBEAT, wrong, service="router", id="r")


async def test_while_the_broker_is_down_nothing_passes_and_it_shows() -> None:
    broker = LocalBroker()
    bus, reader = broker.connect(), broker.connect()
    cancels = await reader.subscribe(CANCEL)
    broker.down()
    assert not bus.connected
    bus.publish(CANCEL, Cancel(request_id="lost"))
    for asked in (bus.flush(), bus.kv.get("a", Named), bus.kv.put("a", Named(model="m")), bus.kv.list("", Named)):
        with pytest.raises(Disconnected):
            await asked
    broker.up()
    bus.publish(CANCEL, Cancel(request_id="kept"))
    await reader.close()
    assert [received.message.request_id async for received in cancels] == ["kept"]
    assert bus.counts == {"dropped_disconnected": 1, "sent": 1}


def test_a_delayed_answer_comes_late_and_a_repeated_one_is_dropped() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        server, asker = broker.connect(), broker.connect()

        async def say(message: Named, context: Context) -> Named:
            return message

        await server.serve(ServiceInfo("echo", "echo-0", "echo"), [Endpoint(ECHO, say)])
        broker.delays = lambda subject: (1.0, 1.5) if subject.startswith("answer.") else (0.0,)
        begun = CLOCK.now()
        assert await asker.call(ECHO, Named(model="m"), timeout=5) == Named(model="m")
        assert CLOCK.now() - begun == 1.0
        await asyncio.sleep(1.0)
        await server.close()
        await asker.close()

    virtual_time.run(main())


def test_what_a_held_bus_sends_and_is_sent_waits() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        held, other = broker.connect(), broker.connect()

        async def say(message: Named, context: Context) -> Named:
            return message

        await held.serve(ServiceInfo("echo", "echo-0", "echo"), [Endpoint(ECHO, say)])
        heard = await other.subscribe(CANCEL)
        held.hold()
        held.publish(CANCEL, Cancel(request_id="r"))
        begun = CLOCK.now()
        asyncio.get_running_loop().call_later(3.0, held.release)
        assert await other.call(ECHO, Named(model="m"), timeout=5) == Named(model="m")
        assert (await anext(aiter(heard))).message.request_id == "r"
        assert CLOCK.now() - begun == 3.0
        await held.close()
        await other.close()

    virtual_time.run(main())


async def told(*, wire: bool, watched: bool = False) -> tuple[list[Beat], list[float]]:
    """What two readers get of one event, and when the answers to some calls come; somebody may look on."""
    took = iter(number / 1000 for number in range(1, 1000))
    broker = LocalBroker(CLOCK, wire=wire, delays=lambda subject: (next(took),))
    sender, *readers = (broker.connect() for _ in range(3))
    subscriptions = [await reader.subscribe(HEARTBEAT, service="planner") for reader in readers]

    async def say(message: Named, context: Context) -> Named:
        return message

    await sender.serve(ServiceInfo("echo", "echo-0", "echo"), [Endpoint(ECHO, say)])
    if watched:
        onlooker = broker.connect(delays=lambda subject: (0.5,))
        seen = await onlooker.subscribe(HEARTBEAT, service="planner")
        begun = CLOCK.now()
        await onlooker.call(ECHO, Named(model="m"), timeout=5)
        assert CLOCK.now() - begun == 1.0
    begun, times = CLOCK.now(), list[float]()
    sender.publish(HEARTBEAT, Beat(service="planner", id="planner-0", epoch=1), service="planner", id="planner-0")
    for reader in readers:
        await reader.call(ECHO, Named(model="m"), timeout=5)
        times.append(round(CLOCK.now() - begun, 6))
    beats = [(await anext(aiter(each))).message for each in subscriptions]
    if watched:
        assert (await anext(aiter(seen))).message == beats[0]
    for bus in list(broker.buses):
        await bus.close()
    return beats, times  # type: ignore[return-value]


def test_an_event_is_decoded_once_unless_it_goes_over_the_wire() -> None:
    (one, other), times = virtual_time.run(told(wire=False))
    assert one is other
    (apart, again), same_times = virtual_time.run(told(wire=True))
    assert apart is not again
    assert apart == again == one
    assert times == same_times


def test_who_looks_on_changes_nothing_for_others() -> None:
    assert virtual_time.run(told(wire=True, watched=True)) == virtual_time.run(told(wire=True))


@pytest.mark.parametrize("wire", [False, True])
def test_a_message_that_is_said_again_arrives_as_it_is_then(wire: bool) -> None:
    async def main() -> None:
        broker, helping = LocalBroker(CLOCK, wire=wire), list[str]()
        sender, reader = broker.connect(), broker.connect()
        beats = await reader.subscribe(HEARTBEAT)
        report = WorkerReport(id="worker-0", epoch=1, state="spare", helping=helping)
        told = list[list[str]]()
        for change in ([], [], ["worker-1"]):
            helping += change
            sender.publish(HEARTBEAT, report, service="worker", id="worker-0")
            heard = (await anext(aiter(beats))).message
            assert isinstance(heard, WorkerReport)
            told.append(heard.helping)
        assert told == [[], [], ["worker-1"]]
        for bus in (sender, reader):
            await bus.close()

    virtual_time.run(main())


@pytest.mark.parametrize("wire", [False, True])
def test_a_message_that_is_said_again_on_another_subject_has_its_holes(wire: bool) -> None:
    async def main() -> None:
        broker, row = LocalBroker(CLOCK, wire=wire), Tokens(request_id="r", index=0, token_ids=[1])
        sender, reader = broker.connect(), broker.connect()
        frames = await reader.subscribe(TOKENS)
        for gateway in ("gateway-0", "gateway-0", "gateway-1"):
            sender.publish(TOKENS, TokenFrame(worker="worker-0", step=1, rows=[row]), gateway=gateway)
        holes = [(await anext(aiter(frames))).holes["gateway"] for _ in range(3)]
        assert holes == ["gateway-0", "gateway-0", "gateway-1"]
        for bus in (sender, reader):
            await bus.close()

    virtual_time.run(main())


def test_what_a_reader_raises_about_a_message_that_comes_alone_ends_its_reading() -> None:
    async def main() -> None:
        broker, taken = LocalBroker(CLOCK, delays=lambda subject: (0.1,)), list[str]()
        sender, reader = broker.connect(), broker.connect()
        cancels = await reader.subscribe(CANCEL)

        def take(received: Received[Cancel]) -> None:
            taken.append(received.message.request_id)
            raise ValueError(taken[-1])

        reading = asyncio.create_task(cancels.each(take))
        await asyncio.sleep(0)
        for id in ("a", "b"):
            sender.publish(CANCEL, Cancel(request_id=id))
            await asyncio.sleep(1)
        with pytest.raises(ValueError, match="a"):
            await reading
        assert taken == ["a"]
        for bus in (sender, reader):
            await bus.close()

    virtual_time.run(main())
