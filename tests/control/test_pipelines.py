"""Execution pipelines as the control plane sees them: targets that have the model between them serve together."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from livescale.shared.messages.scaling import PipelineRecord, ScaleRecord
from livescale.shared.simulation import virtual_time
from tests.control.control_plane import ControlPlane, control_plane, spec
from tests.control.fake_worker import FakeWorker
from tests.control.fakes import BLOCK_BYTES, SLOTS
from tests.control.queries import fake, last_scale, names

TOKENS = 300
BLOCK_SECONDS = 1.0
SOURCE = "worker-0"
TARGETS = ["worker-1", "worker-2", "worker-3", "worker-4"]
REQUESTS = 3 * SLOTS


async def pipelines(plane: ControlPlane) -> list[PipelineRecord]:
    return (await last_scale(plane)).pipelines


async def until_running(plane: ControlPlane) -> None:
    async def holds() -> bool:
        return all(one.running_at is not None for one in await pipelines(plane))

    await plane.until(holds)


@asynccontextmanager
async def scaling_out(targets: int = 4) -> AsyncIterator[ControlPlane]:
    """One instance serves, full of requests, and others load; its host has the model too, so that there are two ways
    to go round the blocks, and pipelines of two."""
    rate = BLOCK_BYTES / BLOCK_SECONDS
    async with control_plane(1 + targets, live="pipeline", rate=rate, patience=30.0) as plane:
        await plane.register(spec(max_instances=1 + targets, downscale_delay_s=100.0))
        for worker in TARGETS[:targets]:
            fake(plane, worker).faults.block_seconds = BLOCK_SECONDS
        await plane.scale(1 + targets)
        for index in range(REQUESTS):
            await plane.gateway.submit(f"r-{index}", max_tokens=TOKENS)
        yield plane


async def finished(plane: ControlPlane) -> None:
    """Every stream is whole, and nothing is left of any pipeline."""

    async def holds() -> bool:
        return len(plane.gateway.finished) == REQUESTS

    await plane.until(holds, 60.0)
    assert set(plane.gateway.finished.values()) == {"length"}
    assert all(plane.gateway.tokens[f"r-{index}"] == list(range(1, TOKENS + 1)) for index in range(REQUESTS))
    await asyncio.sleep(3.0)
    workers = [node for node in plane.fabric.values() if isinstance(node, FakeWorker)]
    assert not any(worker.stages.id or worker.stages.shares or worker.engine.helped for worker in workers)


def play(act: Callable[[ControlPlane], Awaitable[None]]) -> None:
    async def main() -> None:
        async with scaling_out() as plane:
            await act(plane)
            await finished(plane)

    virtual_time.run(main(), limit_seconds=300)


def led(plane: ControlPlane) -> list[str]:
    return [id for id in TARGETS if fake(plane, id).stages.leads]


def test_two_pipelines_serve_before_anybody_is_whole_and_then_each_by_itself() -> None:
    async def act(plane: ControlPlane) -> None:
        await until_running(plane)
        leaders = led(plane)
        assert len(leaders) == 2
        assert not any(fake(plane, id).lifecycle.whole for id in TARGETS)
        await asyncio.sleep(0.5)
        assert all(fake(plane, leader).engine.running for leader in leaders)
        await plane.until_serving(5)
        record = await last_scale(plane)
        assert [one.reason for one in record.pipelines] == ["each of them is whole"] * 2
        await asyncio.sleep(1.0)
        assert sum(len(fake(plane, id).engine.taken) for id in TARGETS) >= 2, "what a leader had is for the others, too"
        assert plane.gateway.lost == []

    play(act)


def test_it_is_ready_when_it_should_be() -> None:
    async def act(plane: ControlPlane) -> None:
        await plane.until_serving(5)
        record = await last_scale(plane)
        assert record.plan is not None
        begun = next(phase.at for phase in record.phases if phase.name == "commanded")
        for one, planned in zip(record.pipelines, record.plan.pipelines, strict=True):
            assert one.ready_at is not None
            assert one.running_at is not None
            assert one.first_token_at is not None
            assert planned.predicted is not None
            assert one.ready_at - begun < planned.predicted * 1.1
            assert one.ready_at <= one.running_at < one.ready_at + 0.1
            assert one.running_at < one.first_token_at < one.running_at + 1.0

    play(act)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_requests_go_on_and_the_others_serve_when_any_member_dies(role: str) -> None:
    async def act(plane: ControlPlane) -> None:
        await until_running(plane)
        leader = led(plane)[0]
        follower = next(id for id in TARGETS if fake(plane, id).stages.id == fake(plane, leader).stages.id != leader)
        await asyncio.sleep(0.3)
        held = set(fake(plane, leader).engine.running)
        assert held
        await plane.kill(leader if role == "leader" else follower)
        await asyncio.sleep(3.0)
        assert set(plane.gateway.lost) == held
        await plane.until_serving(4)
        assert (await ended(plane)).state == "failed"

    play(act)


@pytest.mark.parametrize("slow", ["leader", "follower"])
def test_a_whole_member_does_not_wait_for_ever_for_a_slow_one(slow: str) -> None:
    async def act(plane: ControlPlane) -> None:
        await until_running(plane)
        leader = led(plane)[0]
        pair = [id for id in TARGETS if fake(plane, id).stages.id == fake(plane, leader).stages.id]
        late = next(id for id in pair if (id == leader) == (slow == "leader"))
        fake(plane, late).faults.block_seconds = 15.0
        await asyncio.sleep(5.0)
        assert set(pair).difference(await plane.serving()) == {late}
        assert bool(plane.gateway.lost) == (slow == "leader"), "only one that is not whole has to give back"
        assert f"{late} kept others waiting" in [one.reason for one in await pipelines(plane)]
        fake(plane, late).faults.block_seconds = 0.1
        await plane.until_serving(5, seconds=60.0)

    play(act)


async def ended(plane: ControlPlane) -> ScaleRecord:
    return next(one for one in reversed(await plane.records()) if one.pipelines and one.state in ("done", "failed"))


def test_where_one_refuses_its_part_all_serve_once_they_are_whole() -> None:
    async def act(plane: ControlPlane) -> None:
        for worker in TARGETS:
            fake(plane, worker).faults.refuse_pipelines = True
        await plane.until_serving(5)
        record = await ended(plane)
        assert all("refused its stages" in one.reason for one in record.pipelines)
        assert "live" not in names(record)

    play(act)


def test_a_planner_that_is_started_again_lets_pipelines_run_until_one_of_theirs_is_whole() -> None:
    async def act(plane: ControlPlane) -> None:
        await until_running(plane)
        leaders = led(plane)
        await plane.kill("planner-0")
        plane.restart("planner")
        for _ in range(15):
            await asyncio.sleep(0.1)
            assert led(plane) == leaders or any(fake(plane, id).lifecycle.whole for id in TARGETS)
        await plane.until_serving(5)
        assert [one.reason for one in await pipelines(plane)] == ["the planner was restarted"] * 2

    play(act)


def test_a_second_scale_out_during_it_has_targets_of_its_own() -> None:
    async def act(plane: ControlPlane) -> None:
        await until_running(plane)
        for index in (5, 6):
            plane.add_worker(index)
        await asyncio.sleep(0.2)
        await plane.register(spec(max_instances=7, downscale_delay_s=100.0))
        await plane.scale(7)
        await plane.until_serving(7)
        first, second = [one.plan for one in (await plane.records())[-2:]]
        assert first is not None
        assert second is not None
        assert set(second.live_targets).isdisjoint(first.live_targets)
        assert plane.gateway.lost == []

    play(act)
