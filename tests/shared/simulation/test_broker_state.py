"""What is on its way through the in-process bus, and in which order it arrives."""

from livescale.shared.bus.contract import Call
from livescale.shared.messages.registry import Named
from livescale.shared.messages.requests import Cancel
from livescale.shared.runtime.clock import LoopClock
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import CANCEL

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
