"""Predicted times against what happened, as the planner records it."""

import asyncio

import pytest

from livescale.services.cli.why import tell_times
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.simulation import virtual_time
from tests.control.control_plane import control_plane, spec
from tests.control.queries import until_ended, until_half_way


def begun(record: ScaleRecord) -> float:
    return next(phase.at for phase in record.phases if phase.name == "commanded")


def took(record: ScaleRecord, worker: str) -> list[float]:
    """Return the seconds until each block was ready."""
    return [at - begun(record) for at in record.arrived[worker] if at is not None]


def predicted(record: ScaleRecord, worker: str) -> list[float]:
    assert record.plan is not None
    return [seconds for seconds in record.plan.predicted_blocks[worker] if seconds is not None]


def test_each_block_is_ready_when_it_should_be() -> None:
    async def main() -> None:
        async with control_plane(workers=3) as plane:
            await plane.register(spec(max_instances=3))
            record = await until_ended(plane, (await plane.scale(3)).scale_id)
            for id in ("worker-1", "worker-2"):
                assert took(record, id) == pytest.approx(predicted(record, id), rel=0.1)
            assert record.plan is not None
            lines = list(tell_times(record, record.plan))
            assert any("4 blocks; first, median, last after" in line for line in lines)

    virtual_time.run(main(), limit_seconds=100)


def test_a_plan_that_is_made_anew_has_new_times_for_what_is_missing() -> None:
    async def main() -> None:
        async with control_plane(workers=2, register=False, patience=30.0) as plane:
            await plane.register(spec())
            await until_half_way(plane, "worker-0")
            [before] = await plane.records()
            await plane.kill("host-0")
            await asyncio.sleep(5.0)
            plane.add_host()
            await plane.until_serving(1)
            [record] = await plane.records()
            early, late = predicted(before, "worker-0"), predicted(record, "worker-0")
            assert late[:3] == early[:3], "what had come keeps its times"
            assert late[3] > early[3] + 5.0
            assert took(record, "worker-0") == pytest.approx(late, abs=0.1)
            assert record.plan is not None
            assert record.plan.predicted == {"worker-0": late[-1]}
            [said] = [line for line in tell_times(record, record.plan) if "predicted anew" in line]
            assert "anew 3 times" in said
            assert said.endswith("; now from host-0")

    virtual_time.run(main(), limit_seconds=100)


def test_what_was_predicted_and_happened_outlives_the_planner() -> None:
    async def main() -> None:
        async with control_plane(workers=2) as plane:
            await plane.register(spec(max_instances=2))
            ended = await until_ended(plane, (await plane.scale(2)).scale_id)
            await asyncio.sleep(1.0)
            await plane.kill("planner-0")
            plane.restart("planner")
            await asyncio.sleep(1.0)
            [kept] = [record for record in await plane.records() if record.id == ended.id]
            assert kept.arrived == ended.arrived
            assert kept.plan == ended.plan

    virtual_time.run(main(), limit_seconds=100)
