"""A router dies: another takes office, and finds out what runs."""

import asyncio

import pytest

from livescale.services.router.main import Router
from livescale.services.router.settings import RouterSettings
from livescale.shared.bus.contract import BusError, ServiceInfo
from livescale.shared.messages.membership import RouterReport, Stale
from livescale.shared.messages.requests import Submit
from livescale.shared.process.run import World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import HEARTBEAT, STALE, SUBMIT
from tests.control.control_plane import ControlPlane, control_plane
from tests.control.fakes import CLOCK, SLOTS
from tests.control.queries import fake


def make_router(plane: ControlPlane, id: str) -> Router:
    bus = plane.buses[id] = plane.broker.connect()
    world = World(ServiceInfo("router", id, "a standby"), "box-a", bus, CLOCK, plane.ids, Telemetry("router", id))
    return Router(world, RouterSettings(look_ahead=0))


async def reporting(plane: ControlPlane) -> set[str]:
    """Return the active routers: the others only send heartbeats."""
    reports = await plane.operator.subscribe(HEARTBEAT, service="router")
    heard = set()
    try:
        async with asyncio.timeout(1.1):
            async for received in reports:
                if isinstance(received.message, RouterReport):
                    heard.add(received.message.id)
    except TimeoutError:
        pass
    await reports.close()
    return heard


def test_a_standby_takes_office_within_three_seconds() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            plane.start("router-1", make_router(plane, "router-1").run)
            await asyncio.sleep(1.0)
            assert await reporting(plane) == {"router-0"}
            await plane.kill("router-0")
            died = CLOCK.now()
            while True:
                try:
                    await plane.gateway.submit("r-1")
                    break
                except BusError:
                    await asyncio.sleep(0.05)
            assert CLOCK.now() - died < 3.0
            await asyncio.sleep(1.0)
            assert plane.gateway.finished == {"r-1": "length"}
            plane.restart("router")
            await asyncio.sleep(1.0)
            assert await reporting(plane) == {"router-1"}  # the router that was away stands by

    virtual_time.run(main(), limit_seconds=100)


def test_a_router_that_is_stopped_hands_over_at_once() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            plane.start("router-1", make_router(plane, "router-1").run)
            await asyncio.sleep(1.0)
            await plane.stop("router-0")
            await asyncio.sleep(0.01)
            await plane.gateway.submit("r-1")
            await asyncio.sleep(1.0)
            assert plane.gateway.finished == {"r-1": "length"}

    virtual_time.run(main(), limit_seconds=100)


def test_a_worker_that_is_stopped_is_replaced_before_its_lease_would_have_ended() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await plane.gateway.submit("r-1", max_tokens=100)
            await asyncio.sleep(0.5)
            await plane.stop("worker-0")
            async with asyncio.timeout(1.0):
                await plane.until_serving(1)
            await asyncio.sleep(4.0)
            assert (plane.gateway.lost, plane.gateway.finished) == (["r-1"], {"r-1": "length"})

    virtual_time.run(main(), limit_seconds=100)


def test_a_new_router_knows_what_runs_and_does_not_start_it_again() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            for index in range(SLOTS):
                await plane.gateway.submit(f"r-{index}", max_tokens=200)
            await asyncio.sleep(0.1)
            await plane.kill("router-0")
            plane.restart("router")
            await asyncio.sleep(1.0)
            again = await plane.gateway.bus.call(SUBMIT, plane.gateway.submitted["r-0"], timeout=1.0)
            assert (again.worker, again.ahead) == ("worker-0", 0)
            await plane.gateway.submit("next")
            assert len(fake(plane, "worker-0").engine.admitted) == SLOTS
            plane.gateway.cancel("r-1")
            await asyncio.sleep(0.2)
            assert fake(plane, "worker-0").engine.cancelled == ["r-1"]
            assert fake(plane, "worker-0").engine.admitted[-1].request.request_id == "next"
            await plane.kill("worker-0")
            await asyncio.sleep(4.0)
            assert set(plane.gateway.lost) >= {"r-0", "r-2", "r-3"}

    virtual_time.run(main(), limit_seconds=100)


def test_a_request_submitted_again_before_its_worker_was_asked_leaves_the_queue() -> None:
    async def main() -> None:
        async with control_plane(workers=2) as plane:
            await plane.gateway.submit("r-1", max_tokens=300)
            await plane.kill("router-0")
            plane.restart("router")
            request: Submit = plane.gateway.submitted["r-1"]
            async with asyncio.timeout(2.0):
                while True:
                    try:
                        await plane.gateway.bus.call(SUBMIT, request, timeout=1.0)
                        break
                    except BusError:
                        await asyncio.sleep(0)
            await asyncio.sleep(8.0)
            assert sum(len(fake(plane, f"worker-{index}").engine.admitted) for index in (0, 1)) == 1
            assert plane.gateway.finished == {"r-1": "length"}

    virtual_time.run(main(), limit_seconds=100)


@pytest.mark.parametrize("seconds", [2.0, 5.0])
def test_a_lone_router_that_was_away_with_all_others_keeps_its_office_and_asks_the_workers_again(
    seconds: float,
) -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await plane.gateway.submit("before", max_tokens=200)
            await asyncio.sleep(0.5)
            asked = plane.count("worker.worker-0.running")
            before = await plane.snapshot()
            await plane.freeze(seconds)
            await plane.gateway.submit("after")
            await asyncio.sleep(5.0)
            assert plane.gateway.finished == {"before": "length", "after": "length"}
            assert plane.gateway.lost == []
            assert [(one.id, one.epoch) for one in (await plane.snapshot()).members] == [
                (one.id, one.epoch) for one in before.members
            ]
            assert plane.count("worker.worker-0.running") > asked

    virtual_time.run(main(), limit_seconds=100)


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_a_router_that_is_stopped_for_less_than_a_lease_keeps_its_office(seconds: float) -> None:
    async def main() -> None:
        async with control_plane() as plane:
            plane.start("router-1", make_router(plane, "router-1").run)
            await asyncio.sleep(1.0)
            await plane.freeze(seconds, "router-0")
            await plane.gateway.submit("r-1")
            assert await reporting(plane) == {"router-0"}
            assert plane.gateway.finished == {"r-1": "length"}

    virtual_time.run(main(), limit_seconds=100)


def test_a_lone_router_that_was_declared_dead_joins_again_and_stays_in_office() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await plane.gateway.submit("before", max_tokens=200)
            for index in range(2 * SLOTS * 3):
                await plane.gateway.submit(f"waiting-{index}", max_tokens=100)
            [before] = [one for one in (await plane.snapshot()).members if one.service == "router"]
            await plane.freeze(5.0, "router-0")
            await asyncio.sleep(2.0)
            [after] = [one for one in (await plane.snapshot()).members if one.service == "router"]
            assert (after.lease, after.epoch > before.epoch) == ("alive", True)
            await asyncio.sleep(15.0)
            assert set(plane.gateway.finished.values()) == {"length"}
            assert len(plane.gateway.finished) == 1 + 2 * SLOTS * 3
            assert plane.gateway.lost == []  # what waited still does, nothing was given to two

    virtual_time.run(main(), limit_seconds=100)


def test_a_router_that_was_stopped_for_a_lease_places_nothing_when_it_wakes_and_is_the_standby_then() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            plane.start("router-1", make_router(plane, "router-1").run)
            await asyncio.sleep(1.0)
            await plane.freeze(5.0, "router-0")
            await plane.gateway.submit("r-1")
            await asyncio.sleep(1.0)
            assert [admit.request.request_id for admit in fake(plane, "worker-0").engine.admitted] == ["r-1"]
            assert await reporting(plane) == {"router-1"}
            await plane.stop("router-1")
            await asyncio.sleep(0.5)
            await plane.gateway.submit("r-2")
            await asyncio.sleep(1.0)
            assert plane.gateway.finished == {"r-1": "length", "r-2": "length"}

    virtual_time.run(main(), limit_seconds=100)


def test_a_router_in_office_that_was_declared_dead_steps_aside_and_a_standby_only_joins_again() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            for id in ("router-1", "router-2"):
                plane.start(id, make_router(plane, id).run)
                await asyncio.sleep(0.2)
            plane.buses["router-0"].hold()
            await asyncio.sleep(4.0)
            plane.buses["router-0"].forget()
            plane.buses["router-0"].release()  # cut off, and back: it was not away, and is told
            await asyncio.sleep(2.0)
            assert await reporting(plane) == {"router-1"}
            plane.operator.publish(STALE, Stale(id="router-2", epoch=1_000), id="router-2")
            await asyncio.sleep(2.0)
            await plane.gateway.submit("r-1")
            await asyncio.sleep(1.0)
            assert plane.gateway.finished == {"r-1": "length"}

    virtual_time.run(main(), limit_seconds=100)
