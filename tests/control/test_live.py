"""Live scaling as the control plane sees it: a target takes requests while it loads, and serving instances help it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.simulation import virtual_time
from tests.control.control_plane import ControlPlane, control_plane, spec
from tests.control.fake_worker import Faults
from tests.control.fakes import SLOTS
from tests.control.queries import fake, last_scale, names

TOKENS = 300
BLOCK_SECONDS = 1.0
SOURCE, TARGET, OTHER = "worker-0", "worker-1", "worker-2"


async def reports(plane: ControlPlane) -> dict[str, WorkerReport]:
    return {report.id: report for report in (await plane.snapshot()).workers}


async def until_live(plane: ControlPlane, *workers: str) -> None:
    async def holds() -> bool:
        return all(fake(plane, worker).state == "live" for worker in workers)

    await plane.until(holds)


@asynccontextmanager
async def going_live(workers: int = 2) -> AsyncIterator[ControlPlane]:
    """One instance serves, full of requests, and another takes those that are too many while it loads."""
    async with control_plane(workers, live="zigzag") as plane:
        for index in range(1, workers):
            fake(plane, f"worker-{index}").faults.block_seconds = BLOCK_SECONDS
        for index in range(2 * SLOTS):
            await plane.gateway.submit(f"r-{index}", max_tokens=TOKENS)
        await plane.register(spec(min_instances=2, max_instances=3))
        await until_live(plane, TARGET)
        yield plane


async def finished(plane: ControlPlane) -> None:
    """Check that every stream is whole, and that no request waits."""

    async def holds() -> bool:
        return plane.gateway.finished.keys() == plane.gateway.submitted.keys()

    await plane.until(holds, 60.0)
    assert set(plane.gateway.finished.values()) == {"length"}
    assert all(tokens == list(range(1, TOKENS + 1)) for tokens in plane.gateway.tokens.values())
    await asyncio.sleep(1.0)
    assert not any(report.helping for report in (await reports(plane)).values())


def play(act: Callable[[ControlPlane], Awaitable[None]], workers: int = 2) -> None:
    async def main() -> None:
        async with going_live(workers) as plane:
            await act(plane)
            await finished(plane)

    virtual_time.run(main(), limit_seconds=200)


def test_a_live_target_gets_what_is_too_much_for_the_source_which_takes_it_back_when_it_has_room() -> None:
    async def act(plane: ControlPlane) -> None:
        assert [len(fake(plane, id).engine.running) for id in (SOURCE, TARGET)] == [SLOTS, SLOTS]
        assert (await reports(plane))[SOURCE].helping == [TARGET]
        await plane.until_serving(2)
        record = await last_scale(plane)
        assert names(record).index("helps") < names(record).index("live") < names(record).index("whole")
        # No instance more was asked for on account of it.
        assert [one.instances for one in await plane.records()][1:] == [record.instances]

    play(act)


def test_an_instance_that_has_room_again_takes_requests_over_while_the_target_loads() -> None:
    async def act(plane: ControlPlane) -> None:
        fake(plane, TARGET).faults.block_seconds = 4.5
        await asyncio.sleep(6.2)
        assert fake(plane, TARGET).state == "live"
        assert sorted(fake(plane, SOURCE).engine.taken) == [f"r-{index}" for index in range(SLOTS, 2 * SLOTS)]
        assert sorted(fake(plane, SOURCE).engine.running) == fake(plane, SOURCE).engine.taken
        assert plane.gateway.lost == []
        await plane.kill(TARGET)  # it has nothing any more that could be lost
        await asyncio.sleep(3.0)
        assert plane.gateway.lost == []
        plane.add_worker(1)

    play(act)


@pytest.mark.parametrize("victim", [SOURCE, TARGET])
def test_requests_go_on_when_any_worker_dies_in_a_live_scale(victim: str) -> None:
    async def act(plane: ControlPlane) -> None:
        held = sorted(fake(plane, victim).engine.running)
        await plane.kill(victim)
        await asyncio.sleep(3.0)
        assert sorted(plane.gateway.lost) == held
        if victim == TARGET:
            assert (await last_scale(plane)).state == "failed"
            plane.add_worker(1)

    play(act)


def test_a_target_that_gives_up_gives_its_requests_back_and_is_helped_no_more() -> None:
    async def act(plane: ControlPlane) -> None:
        fake(plane, TARGET).faults.break_after_blocks = 3
        held = sorted(fake(plane, TARGET).engine.running)
        await asyncio.sleep(2.0)
        assert sorted(plane.gateway.lost) == held
        record = next(one for one in await plane.records() if one.state == "failed")
        assert [phase.detail for phase in record.phases if phase.name == "helps"] == [
            f"take requests over from {TARGET}",
            "take requests over from no target any more",
        ]
        fake(plane, TARGET).faults.break_after_blocks = None

    play(act)


def test_a_planner_that_is_started_again_in_mid_live_goes_on_with_it() -> None:
    async def act(plane: ControlPlane) -> None:
        await plane.kill("planner-0")
        fake(plane, SOURCE).engine.helped.clear()
        plane.restart("planner")
        await asyncio.sleep(1.5)
        assert fake(plane, SOURCE).engine.helped == {TARGET}
        await plane.until_serving(2)
        assert plane.gateway.lost == []
        assert (await last_scale(plane)).outcome == "1 new instances serve"

    play(act)


def test_a_router_that_is_started_again_in_mid_live_learns_who_has_what() -> None:
    async def act(plane: ControlPlane) -> None:
        await plane.kill("router-0")
        plane.restart("router")
        await asyncio.sleep(1.0)
        await plane.kill(TARGET)
        await asyncio.sleep(4.0)
        assert sorted(plane.gateway.lost) == [f"r-{index}" for index in range(SLOTS, 2 * SLOTS)]
        plane.add_worker(1)

    play(act)


def test_a_second_scale_out_during_the_first_has_targets_and_help_of_its_own() -> None:
    async def act(plane: ControlPlane) -> None:
        await plane.scale(3)
        await until_live(plane, OTHER)
        first, second = (await plane.records())[-2:]
        assert [one.plan.live_targets for one in (first, second) if one.plan is not None] == [[TARGET], [OTHER]]
        assert second.plan is not None
        assert TARGET not in {flow.sender for flow in second.plan.flows}
        assert (await reports(plane))[SOURCE].helping == [TARGET, OTHER]  # there is no other worker
        await plane.until_serving(3)

    play(act, workers=3)


def test_once_the_target_has_nothing_left_both_serve_alone_and_share_the_work() -> None:
    async def act(plane: ControlPlane) -> None:
        await plane.until_serving(2)
        await finished(plane)
        taken = list(fake(plane, SOURCE).engine.taken)
        for index in range(SLOTS):
            await plane.gateway.submit(f"later-{index}", max_tokens=TOKENS)
        await asyncio.sleep(0.2)
        assert [len(fake(plane, id).engine.running) for id in (SOURCE, TARGET)] == [SLOTS // 2, SLOTS // 2]
        await finished(plane)
        assert fake(plane, SOURCE).engine.taken == taken

    play(act)


def test_when_the_helper_drains_another_helps_and_all_streams_are_whole() -> None:
    async def main() -> None:
        async with control_plane(2, live="zigzag") as plane:
            await plane.register(spec(min_instances=2, max_instances=3))
            await plane.until_serving(2)
            plane.add_worker(2, Faults(block_seconds=BLOCK_SECONDS))
            for index in range(3 * SLOTS):
                await plane.gateway.submit(f"r-{index}", max_tokens=TOKENS)
            await until_live(plane, OTHER)
            [helper] = [id for id, report in (await reports(plane)).items() if report.helping]
            await plane.scale(2)
            await asyncio.sleep(0.5)
            said = await reports(plane)
            assert (said[helper].state, said[OTHER].state) == ("draining", "live")
            assert [id for id, report in said.items() if report.helping] == [SOURCE if helper == TARGET else TARGET]
            await finished(plane)

    virtual_time.run(main(), limit_seconds=200)


def test_an_instance_that_is_live_is_never_drained_nor_is_the_last_that_serves_before_it_does() -> None:
    async def act(plane: ControlPlane) -> None:
        await plane.register(spec(min_instances=0, max_instances=3))
        with pytest.raises(Refusal, match="1 of 2 still load"):
            await plane.scale(1)
        assert fake(plane, TARGET).state == "live"
        await plane.register(spec(min_instances=1, max_instances=3))
        await plane.until_serving(2)

    play(act)


@pytest.mark.parametrize(("slo", "goes"), [(0.5, True), (60.0, False)])
def test_by_need_what_the_monitor_saw_decides_whether_a_target_goes_live(slo: float, goes: bool) -> None:
    async def main() -> None:
        async with control_plane(2, live="zigzag", slo=slo) as plane:
            await plane.gateway.submit("first", max_tokens=2)  # from then on it is known how fast the instance is
            await asyncio.sleep(2.0)
            for index in range(4):
                await plane.gateway.submit(f"r-{index}", prompt=400, max_tokens=2)
            await plane.until_serving(2)
            record = (await plane.records())[-1]
            assert record.plan is not None
            assert record.decision.by == "monitor"
            assert record.plan.live_targets == ([TARGET] if goes else [])
            said = "they are live: if they stopped" if goes else "no target is live: although they stop"
            assert [said in reason for reason in record.plan.reasons].count(True) == 1

    virtual_time.run(main(), limit_seconds=100)
