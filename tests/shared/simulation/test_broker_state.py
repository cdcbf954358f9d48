"""What is on its way through the in-process bus, and in which order it arrives."""

import asyncio
from functools import partial

import pytest

from livescale.shared.bus.contract import Call
from livescale.shared.messages.registry import Named
from livescale.shared.messages.requests import Cancel
from livescale.shared.simulation import broker_state, virtual_time
from livescale.shared.simulation.broker_state import DelayedDeliveries
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.simulation.processes import Process
from livescale.shared.simulation.virtual_clock import machine_time
from livescale.shared.subjects import CANCEL
from tests.clocks import LoopClock

ECHO: Call[Named, Named] = Call("svc.echo.say", Named, Named, queue=True)
CLOCK = LoopClock(epoch=1_000_000.0)


def test_a_message_arrives_as_often_and_as_late_as_it_is_told_to() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        sender, listener = broker.connect(), broker.connect()
        cancels = await listener.subscribe(CANCEL)
        broker.delays = lambda subject: {"a": (0.0, 2.0), "b": (), "c": (1.0,)}[next(names)]
        names = iter("abc")
        begun, seen = CLOCK.now(), []
        for name in "abc":
            sender.publish(CANCEL, Cancel(request_id=name))
        for _ in range(3):
            received = await anext(aiter(cancels))
            seen.append((received.message.request_id, CLOCK.now() - begun))
        assert seen == [("a", 0.0), ("c", 1.0), ("a", 2.0)]
        await sender.close()
        await listener.close()

    virtual_time.run(main())


def test_what_one_connection_says_on_one_subject_arrives_in_its_order() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        buses = first, second, listener = broker.connect(), broker.connect(), broker.connect()
        cancels = await listener.subscribe(CANCEL)
        late = iter((3.0, 1.0, 1.0, 0.0, 2.0))
        broker.delays = lambda subject: (next(late),)
        for name in ("first a", "first b"):
            first.publish(CANCEL, Cancel(request_id=name))
        second.publish(CANCEL, Cancel(request_id="second a"))
        first.publish(CANCEL, Cancel(request_id="first c"))
        second.publish(CANCEL, Cancel(request_id="second b"))
        begun, seen = CLOCK.now(), []
        for _ in range(5):
            received = await anext(aiter(cancels))
            seen.append((received.message.request_id, CLOCK.now() - begun))
        assert seen == [("second a", 1.0), ("second b", 2.0), ("first a", 3.0), ("first b", 3.0), ("first c", 3.0)]
        for bus in buses:
            await bus.close()

    virtual_time.run(main())


def test_messages_that_arrive_at_one_moment_come_in_the_order_of_sending() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK, delays=lambda subject: (1.0,))
        buses = [broker.connect() for _ in range(50)]
        cancels = await buses[0].subscribe(CANCEL)
        for number, bus in enumerate(buses):
            bus.publish(CANCEL, Cancel(request_id=str(number)))
        seen = [(await anext(aiter(cancels))).message.request_id for _ in buses]
        assert seen == [str(number) for number, _ in enumerate(buses)]
        for bus in buses:
            await bus.close()

    virtual_time.run(main())


def test_a_message_arrives_in_its_time_though_its_sender_sleeps() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK, delays=lambda subject: (1.0,))
        sender, listener = broker.connect(), broker.connect()
        cancels = await listener.subscribe(CANCEL)
        process = Process()
        for name in ("once", "again"):
            process.context().run(sender.publish, CANCEL, Cancel(request_id=name))
            process.stop()
            received = await anext(aiter(cancels))
            assert (received.message.request_id, machine_time() % 10) == (name, 1.0)
            await asyncio.sleep(9.0)
            process.go_on()
        for bus in (sender, listener):
            await bus.close()

    virtual_time.run(main())


def test_ways_on_which_everything_has_arrived_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_state, "MOST_WAYS", 10)

    async def main() -> None:
        deliveries, seen = DelayedDeliveries(), list[int]()
        deliveries.add_all((5.0,), lambda: seen.append(-1), deliveries.way("sender", "slow").latest, "listener")
        for number in range(100):
            deliveries.add_all((1.0,), partial(seen.append, number), deliveries.way(number, "fast").latest, "listener")
            await asyncio.sleep(0.04)
        assert len(deliveries._ways) < 60
        deliveries.add_all((0.0,), lambda: seen.append(-2), deliveries.way("sender", "slow").latest, "listener")
        await asyncio.sleep(2.0)
        assert seen[-2:] == [-1, -2]
        assert sorted(seen[:-2]) == list(range(100))

    virtual_time.run(main())
