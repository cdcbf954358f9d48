"""Which processes are there, as they say on the bus and hear from there."""

import asyncio

from livescale.services.registry.members import TICK_SECONDS
from livescale.shared.messages.membership import Beat, Leave
from livescale.shared.messages.registry import AskIncidents, Incident, ProcessEnded, WasAway
from livescale.shared.simulation.local_bus import LocalBus
from livescale.shared.subjects import AWAY, DEATH, HEARTBEAT, INCIDENTS, LEASE, LEAVE, PROCESS, STALE
from tests.registry.local import in_virtual_time, join, registry, snapshot


async def incidents(bus: LocalBus) -> list[Incident]:
    return (await bus.call(INCIDENTS, AskIncidents(limit=10), timeout=1.0)).incidents


def test_a_process_that_joins_is_alive_and_gets_a_higher_epoch_each_time() -> None:
    async def main() -> None:
        async with registry() as bus:
            first = await join(bus, pid=7)
            assert {each.id: each.lease for each in (await snapshot(bus)).members}["planner-0"] == "alive"
            assert await incidents(bus) == []
            assert await join(bus, pid=8) > first
            assert "started again, as pid 8 after 7" in [each.text for each in await incidents(bus)]

    in_virtual_time(main())


def test_a_silent_process_is_suspected_then_declared_dead_and_an_incident() -> None:
    async def main() -> None:
        async with registry() as bus:
            leases = await bus.subscribe(LEASE, id="planner-0")
            deaths = await bus.subscribe(DEATH, service="planner")
            await join(bus)
            await asyncio.sleep(3.0)
            await leases.close()
            await deaths.close()
            assert [received.message.state async for received in leases] == ["alive", "suspect", "dead"]
            assert [received.message.id async for received in deaths] == ["planner-0"], "and its death is told apart"
            assert [(each.who, each.kind) for each in await incidents(bus)] == [("planner-0", "death")]

    in_virtual_time(main())


def test_a_process_that_beats_lives_on_and_one_that_leaves_is_dead_at_once() -> None:
    async def main() -> None:
        async with registry() as bus:
            epoch = await join(bus)
            for _ in range(30):
                await asyncio.sleep(TICK_SECONDS)
                beat = Beat(service="planner", id="planner-0", epoch=epoch)
                bus.publish(HEARTBEAT, beat, service="planner", id="planner-0")
            assert {each.id: each.lease for each in (await snapshot(bus)).members}["planner-0"] == "alive"
            bus.publish(LEAVE, Leave(service="planner", id="planner-0", epoch=epoch), service="planner", id="planner-0")
            await asyncio.sleep(TICK_SECONDS)
            assert {each.id: each.lease for each in (await snapshot(bus)).members}["planner-0"] == "dead"

    in_virtual_time(main())


def test_an_epoch_that_is_over_is_told_to_be_stale() -> None:
    async def main() -> None:
        async with registry() as bus:
            stale = await bus.subscribe(STALE, id="planner-0")
            old = await join(bus)
            await join(bus, pid=8)
            beat = Beat(service="planner", id="planner-0", epoch=old)
            bus.publish(HEARTBEAT, beat, service="planner", id="planner-0")
            await asyncio.sleep(TICK_SECONDS)
            await stale.close()
            assert [received.message.epoch async for received in stale] == [old]

    in_virtual_time(main())


def test_a_process_that_asks_again_to_join_did_not_restart() -> None:
    async def main() -> None:
        async with registry() as bus:
            assert await join(bus) == await join(bus)
            assert await incidents(bus) == []

    in_virtual_time(main())


def test_stalls_and_ends_that_others_tell_are_incidents() -> None:
    async def main() -> None:
        async with registry() as bus:
            await join(bus)
            await join(bus, "monitor-0")
            away = WasAway(service="planner", id="planner-0", host="box", seconds=2.0, at=5.0)
            bus.publish(AWAY, away, service="planner", id="planner-0")
            ended = ProcessEnded(id="router-0", reason="killed by SIGKILL", at=6.0)
            bus.publish(PROCESS, ended, id="router-0")
            await asyncio.sleep(TICK_SECONDS)
            assert [(each.who, each.kind) for each in await incidents(bus)] == [
                ("planner-0", "stall"),
                ("router-0", "end"),
            ]

    in_virtual_time(main())
