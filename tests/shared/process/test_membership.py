import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from livescale.shared.bus.contract import Bus, Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.messages.membership import Beat, Join, Joined, Leave, Report, Stale
from livescale.shared.process.membership import REPORT_SECONDS, Membership
from livescale.shared.runtime.clock import MOST_SECONDS
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.simulation.processes import Process
from livescale.shared.subjects import AWAY, HEARTBEAT, JOIN, LEAVE, STALE
from tests.clocks import LoopClock

CLOCK = LoopClock(epoch=0.0)


async def answer_joins(bus: Bus, epochs: list[int]) -> list[Join]:
    """A registry that gives out `epochs`, one a join; what it was asked."""
    asked: list[Join] = []

    async def join(message: Join, context: Context) -> Joined:
        asked.append(message)
        return Joined(epoch=epochs[len(asked) - 1])

    await bus.serve(ServiceInfo("registry", "registry-0", "registry"), [Endpoint(JOIN, join)])
    return asked


async def hear(bus: Bus) -> list[tuple[float, Report]]:
    heard: list[tuple[float, Report]] = []
    beats = await bus.subscribe(HEARTBEAT)

    async def listen() -> None:
        async for received in beats:
            heard.append((CLOCK.now(), received.message))

    asyncio.create_task(listen(), name="listener")  # noqa: RUF006 ends with the bus
    return heard


def in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    virtual_time.run(main, limit_seconds=100)


def worker(bus: Bus, **more: Any) -> Membership:
    return Membership(bus, CLOCK, "worker", "worker-0", "box", address=b"addr", **more)


def test_it_joins_then_reports_twice_a_second() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        registry, bus = broker.connect(), broker.connect()
        asked = await answer_joins(registry, [5])
        heard = await hear(registry)
        running = asyncio.create_task(worker(bus).run())
        await asyncio.sleep(2.1)
        assert [(join.id, join.address) for join in asked] == [("worker-0", b"addr")]
        beat = Beat(service="worker", id="worker-0", epoch=5)
        assert heard == [(pytest.approx(at), beat) for at in (0, 0.5, 1.0, 1.5, 2.0)]
        await stop(running, registry, bus)

    in_virtual_time(main())


def test_a_change_is_reported_at_once_and_only_once() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        registry, bus = broker.connect(), broker.connect()
        await answer_joins(registry, [1])
        heard = await hear(registry)
        membership = worker(bus)
        running = asyncio.create_task(membership.run())
        await asyncio.sleep(0.2)
        membership.changed()
        membership.changed()
        await asyncio.sleep(0.6)
        assert [at for at, _ in heard] == pytest.approx([0, 0.2, 0.7])
        await stop(running, registry, bus)

    in_virtual_time(main())


def test_a_report_that_cannot_be_made_ends_the_process() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        registry, bus = broker.connect(), broker.connect()
        await answer_joins(registry, [1])

        def fail_later(epoch: int) -> Report:
            if CLOCK.now() > 1.2:
                raise ZeroDivisionError("the second half of the second second")
            return Beat(service="worker", id="worker-0", epoch=epoch)

        with pytest.raises(ExceptionGroup) as caught:
            await worker(bus, report=fail_later).run()
        assert [type(each) for each in caught.value.exceptions] == [ZeroDivisionError]
        assert CLOCK.now() == pytest.approx(1.5)
        await registry.close()
        await bus.close()

    in_virtual_time(main())


def test_it_waits_for_a_registry_that_comes_late() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        registry, bus = broker.connect(), broker.connect()
        membership = worker(bus)
        running = asyncio.create_task(membership.run())
        await asyncio.sleep(10)
        assert membership.epoch == 0
        await answer_joins(registry, [2])
        async with asyncio.timeout(1.5):
            assert await membership.joined() == 2
        await stop(running, registry, bus)

    in_virtual_time(main())


def test_a_registry_that_does_not_answer_is_asked_again() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        registry, bus = broker.connect(), broker.connect()
        asked = await answer_joins(registry, [3, 4])
        broker.lose = lambda subject: CLOCK.now() < 1
        membership = worker(bus)
        running = asyncio.create_task(membership.run())
        assert await membership.joined() == 3
        assert len(asked) == 1
        assert CLOCK.now() == pytest.approx(2.05)
        await stop(running, registry, bus)

    in_virtual_time(main())


def test_a_refused_epoch_is_given_up_and_a_new_one_taken() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        registry, bus = broker.connect(), broker.connect()
        asked = await answer_joins(registry, [1, 2])
        losses: list[float] = []
        membership = worker(bus, on_stale=lambda: losses.append(CLOCK.now()))
        running = asyncio.create_task(membership.run())
        await asyncio.sleep(1)
        # The second refusal speaks of the epoch that was just given up.
        for _ in range(2):
            registry.publish(STALE, Stale(id="worker-0", epoch=1), id="worker-0")
        await asyncio.sleep(1)
        assert (membership.epoch, len(asked), losses) == (2, 2, [1.0])
        await stop(running, registry, bus)

    in_virtual_time(main())


def test_a_process_that_the_registry_refuses_ends() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        registry, bus = broker.connect(), broker.connect()

        async def refuse(message: Join, context: Context) -> Joined:
            raise Refusal(409, "worker-0 is taken by pid 7 on box")

        await registry.serve(ServiceInfo("registry", "registry-0", "registry"), [Endpoint(JOIN, refuse)])
        with pytest.raises(ExceptionGroup) as failed:
            await worker(bus).run()
        assert failed.group_contains(Refusal, match="409: worker-0 is taken")

    in_virtual_time(main())


def test_after_an_outage_it_reports_at_once() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        registry, bus = broker.connect(), broker.connect()
        await answer_joins(registry, [1])
        heard = await hear(registry)
        running = asyncio.create_task(worker(bus).run())
        await asyncio.sleep(0.7)
        broker.down()
        await asyncio.sleep(3)
        broker.up()
        await asyncio.sleep(0.1)
        assert [at for at, _ in heard] == pytest.approx([0, 0.5, 3.7])
        await stop(running, registry, bus)

    in_virtual_time(main())


def test_its_last_word_is_that_it_leaves_and_after_it_comes_no_heartbeat() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        registry, bus = broker.connect(), broker.connect()
        await answer_joins(registry, [3])
        heard = await hear(registry)
        leaves = await registry.subscribe(LEAVE)
        running = asyncio.create_task(worker(bus).run())
        await asyncio.sleep(0.7)
        running.cancel()
        async with asyncio.timeout(0.1):
            assert (await anext(aiter(leaves))).message == Leave(service="worker", id="worker-0", epoch=3)
        await asyncio.sleep(2)
        assert len(heard) == 2
        await stop(running, registry, bus)

    in_virtual_time(main())


async def stop(running: "asyncio.Task[None]", *buses: Bus) -> None:
    running.cancel()
    await asyncio.wait([running])
    for bus in buses:
        await bus.close()


def test_a_process_that_slept_says_for_how_long() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        registry, bus = broker.connect(), broker.connect()
        await answer_joins(registry, [5])
        aways = await registry.subscribe(AWAY)
        process = Process()
        running = asyncio.create_task(worker(bus).run(), context=process.context())
        await asyncio.sleep(1.0)
        process.stop()
        await asyncio.sleep(2.1 + MOST_SECONDS)
        process.go_on()
        await asyncio.sleep(1.0)
        told = (await anext(aiter(aways))).message
        assert (told.id, told.host, told.seconds) == ("worker-0", "box", pytest.approx(2.1))
        assert 3.35 <= told.at <= 3.35 + REPORT_SECONDS
        running.cancel()
        await asyncio.wait([running])
        await aways.close()

    in_virtual_time(main())
