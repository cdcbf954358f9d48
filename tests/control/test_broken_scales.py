"""Scales whose nodes die while parameters move: the others go on with what they have."""

import asyncio

import pytest

from livescale.shared.bus.contract import Refusal
from livescale.shared.simulation import virtual_time
from tests.control.control_plane import ControlPlane, control_plane, spec
from tests.control.fake_worker import Faults
from tests.control.fakes import BLOCKS
from tests.control.queries import fake, replanned, until_ended, until_half_way

HALF_WAY = 0.12  # seconds after a scale was accepted: two of four blocks have arrived


def test_a_source_that_dies_is_replaced_and_no_block_comes_twice() -> None:
    async def main() -> None:
        async with control_plane(workers=4) as plane:
            await plane.register(spec(max_instances=8, min_instances=3))
            await until_half_way(plane, "worker-1")
            await plane.kill("worker-0")
            scale = (await plane.records())[-1].id
            record = await until_ended(plane, scale)
            assert record.state == "done"
            # The host sends to the other target, which has no node to pass blocks on to yet.
            assert replanned(record) == [("worker-1", "the peer is gone; now from worker-2")]
            for id in ("worker-1", "worker-2"):
                assert sorted(fake(plane, id).received) == list(range(BLOCKS))
            await plane.until_serving(3)

    virtual_time.run(main(), limit_seconds=100)


def test_a_hop_that_dies_is_bridged_and_its_instance_made_elsewhere() -> None:
    async def main() -> None:
        async with control_plane(workers=5) as plane:
            await plane.register(spec(max_instances=8, min_instances=4))
            await until_half_way(plane, "worker-3")
            scale = (await plane.records())[-1].id
            await plane.kill("worker-1")
            record = await until_ended(plane, scale)
            assert record.outcome.startswith("worker-1 is gone")
            assert [node for node, _ in replanned(record)] == ["worker-3"]
            assert sorted(fake(plane, "worker-3").received) == list(range(BLOCKS))
            await plane.until_serving(4)
            assert await plane.serving() == ["worker-0", "worker-2", "worker-3", "worker-4"]

    virtual_time.run(main(), limit_seconds=100)


def test_the_stranded_wait_for_a_host_that_comes_back_and_reads_again() -> None:
    async def main() -> None:
        async with control_plane(workers=2, register=False, patience=30.0) as plane:
            await plane.register(spec())
            await until_half_way(plane, "worker-0")
            await plane.kill("host-0")
            await asyncio.sleep(5.0)
            assert fake(plane, "worker-0").state == "loading"
            plane.add_host()
            await plane.until_serving(1)
            assert sorted(fake(plane, "worker-0").received) == list(range(BLOCKS))
            [record] = await plane.records()
            assert record.state == "done"

    virtual_time.run(main(), limit_seconds=100)


def test_scaling_in_while_a_new_instance_loads_leaves_the_one_that_serves() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            accepted = await plane.scale(2)
            await asyncio.sleep(HALF_WAY)
            with pytest.raises(Refusal, match="1 of 2 still load") as refused:
                await plane.scale(1)
            assert (refused.value.code, refused.value.retry_after_ms) == (503, 1000)
            assert (await until_ended(plane, accepted.scale_id)).state == "done"
            await plane.until_serving(1)  # calm: the monitor gives the second one back

    virtual_time.run(main(), limit_seconds=100)


def test_scaling_in_while_another_loads_drains_no_more_than_may_go() -> None:
    async def main() -> None:
        async with control_plane(workers=4) as plane:
            await plane.register(spec(max_instances=8, min_instances=2))
            await plane.until_serving(2)
            await plane.register(spec(max_instances=8, min_instances=1, downscale_delay_s=99.0))
            out = await plane.scale(3)
            await asyncio.sleep(HALF_WAY)
            into = await plane.scale(1)
            assert (into.actual, into.target) == (3, 2)
            assert (await until_ended(plane, into.scale_id)).state == "done"
            assert (await until_ended(plane, out.scale_id)).state == "done"
            assert len(await plane.serving()) == 2

    virtual_time.run(main(), limit_seconds=100)


def test_a_second_scale_out_during_the_first_takes_other_workers_and_survives_its_failure() -> None:
    async def main() -> None:
        async with control_plane(workers=4) as plane:
            await plane.register(spec(max_instances=8, downscale_delay_s=99.0))
            first = await plane.scale(2)
            await asyncio.sleep(HALF_WAY)
            second = await plane.scale(4)
            assert (second.actual, second.target) == (2, 4)
            await plane.kill("worker-1")
            assert (await until_ended(plane, first.scale_id)).state == "failed"
            assert (await until_ended(plane, second.scale_id)).state == "done"
            assert await plane.serving() == ["worker-0", "worker-2", "worker-3"]

    virtual_time.run(main(), limit_seconds=100)


async def planner_restarts(plane: ControlPlane) -> None:
    await plane.kill("planner-0")
    await asyncio.sleep(0.5)
    plane.restart("planner")
    await asyncio.sleep(0.1)


def test_a_restarted_planner_goes_on_with_what_was_loading_and_still_tells_of_it() -> None:
    async def main() -> None:
        async with control_plane(workers=4) as plane:
            await plane.register(spec(min_instances=3))
            await until_half_way(plane, "worker-2")
            before = (await plane.records())[-1]
            await planner_restarts(plane)
            record = await until_ended(plane, before.id)
            assert record.outcome == "2 new instances serve"
            assert [phase.name for phase in record.phases][:3] == ["decided", "planned", "commanded"]
            assert [one.id for one in await plane.records()] == ["scale-1", before.id]
            for id in ("worker-1", "worker-2"):
                assert sorted(fake(plane, id).received) == list(range(BLOCKS))
                assert fake(plane, id).aborts == []
            assert await plane.serving() == ["worker-0", "worker-1", "worker-2"]

    virtual_time.run(main(), limit_seconds=100)


def test_what_a_dead_planner_had_loading_goes_on_although_its_source_died_meanwhile() -> None:
    async def main() -> None:
        async with control_plane(workers=3) as plane:
            await plane.register(spec(min_instances=2))
            await until_half_way(plane, "worker-1")
            scale = (await plane.records())[-1].id
            await plane.kill("worker-0")
            await planner_restarts(plane)
            record = await until_ended(plane, scale)
            assert (record.state, replanned(record)[0][0]) == ("done", "worker-1")
            assert "the planner was restarted; now from host-0" in replanned(record)[-1][1]
            assert sorted(fake(plane, "worker-1").received) == list(range(BLOCKS))
            await plane.until_serving(2)

    virtual_time.run(main(), limit_seconds=100)


def test_a_restarted_planner_names_no_flow_as_the_one_before_did() -> None:
    async def main() -> None:
        async with control_plane(workers=6) as plane:
            await plane.register(spec(max_instances=6, min_instances=6))
            await until_half_way(plane, "worker-1")
            before = (await plane.records())[-1]
            await plane.kill("worker-0")
            await planner_restarts(plane)
            after = await until_ended(plane, before.id)
            assert len(replanned(after)) > 0
            told = [{flow.ticket for flow in plan.flows} for one in (before, after) if (plan := one.plan)]
            assert not set.intersection(*told), told

    virtual_time.run(main(), limit_seconds=100)


def test_a_restarted_planner_ends_what_was_draining() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await plane.register(spec(min_instances=2))
            await plane.until_serving(2)
            await plane.register(spec(min_instances=1, downscale_delay_s=99.0))
            for index in range(4):
                await plane.gateway.submit(f"r-{index}", max_tokens=100)
            await asyncio.sleep(0.2)
            accepted = await plane.scale(1)
            await planner_restarts(plane)
            record = await until_ended(plane, accepted.scale_id)
            assert (record.state, record.outcome) == ("done", "1 instances drained")
            left = await plane.serving()
            assert "worker-1" in left  # perhaps with a new one: four requests are much for one instance
            assert "worker-0" not in left
            assert len(plane.gateway.finished) == 4

    virtual_time.run(main(), limit_seconds=100)


def test_below_its_minimum_the_rest_is_asked_for_again_as_soon_as_there_is_a_worker() -> None:
    """A target fails, so that the scale leaves fewer than the minimum; no other worker is spare until one joins."""

    async def main() -> None:
        async with control_plane(workers=2) as plane:
            plane.add_worker(2, Faults(refuse_loads=True))
            await asyncio.sleep(1.0)
            await plane.register(spec(min_instances=3))
            await plane.until_serving(2)
            await asyncio.sleep(20.0)
            failed = [record for record in await plane.records() if record.state == "failed"]
            assert {record.outcome for record in failed} == {"worker-2 did not load: the arena is broken"}
            assert 4 <= len(failed) <= 6  # at once, then after 1, 2, 4 and 8 seconds
            await plane.kill("worker-2")
            plane.add_worker(3)
            await plane.until_serving(3)

    virtual_time.run(main(), limit_seconds=100)
