"""The planner in the whole control plane, under virtual time: scales as an operator asks for them."""

import asyncio

import pytest

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.simulation import virtual_time
from tests.control.control_plane import control_plane, spec
from tests.control.fake_worker import Faults


def phases(record: ScaleRecord) -> list[str]:
    return [phase.name for phase in record.phases]


def last_out(records: list[ScaleRecord]) -> ScaleRecord:
    return [record for record in records if record.decision.action == "out"][-1]


def test_commands_go_out_at_once_and_the_first_byte_moves_within_milliseconds() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await plane.register(spec(min_instances=3))
            await plane.until_serving(3)
            record = last_out(await plane.records())
            first_bytes = [phase.at for phase in record.phases if phase.name == "first_byte"]
            assert len(first_bytes) == 2
            assert max(first_bytes) - record.decision.at < 0.02

    virtual_time.run(main(), limit_seconds=100)


def test_a_second_scale_is_planned_while_the_first_still_loads() -> None:
    async def main() -> None:
        async with control_plane(workers=4) as plane:
            await plane.register(spec(max_instances=8))
            first, second = await asyncio.gather(plane.scale(2), plane.scale(4))
            assert {first.scale_id, second.scale_id} == {"scale-2", "scale-3"}
            records = {record.id: record for record in await plane.records()}
            plans = [plan for id in ("scale-2", "scale-3") if (plan := records[id].plan) is not None]
            taken = [worker for plan in plans for instance in plan.instances for worker in instance.ranks]
            assert sorted(taken) == ["worker-1", "worker-2", "worker-3"]
            assert [records[id].state for id in ("scale-2", "scale-3")] == ["loading", "loading"]
            # Two flows from one source would halve each other.
            senders = [flow.sender for plan in plans for flow in plan.flows]
            assert sorted(set(senders)) == sorted(senders)
            await plane.until_serving(4)

    virtual_time.run(main(), limit_seconds=100)


def test_asking_for_what_is_there_does_nothing() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            accepted = await plane.scale(1)
            assert (accepted.scale_id, accepted.actual, accepted.target) == (None, 1, 1)

    virtual_time.run(main(), limit_seconds=100)


@pytest.mark.parametrize(
    ("model", "instances", "code", "words"),
    [
        ("unknown", 1, 404, "not registered"),
        ("m", 3, 400, "instances must be 1 to 2 for 'm', not 3"),
        ("m", 0, 400, "instances must be 1 to 2"),
    ],
)
def test_a_scale_that_cannot_be_is_refused(model: str, instances: int, code: int, words: str) -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await plane.register(spec(max_instances=2))
            with pytest.raises(Refusal, match=words) as refused:
                await plane.scale(instances, model)
            assert refused.value.code == code

    virtual_time.run(main(), limit_seconds=100)


def test_without_a_spare_worker_the_operator_is_told() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            with pytest.raises(Refusal, match="no spare worker fits: 0 spare") as refused:
                await plane.scale(2)
            assert refused.value.code == 503

    virtual_time.run(main(), limit_seconds=100)


def test_a_target_that_dies_fails_the_scale_and_another_takes_its_place() -> None:
    async def main() -> None:
        async with control_plane(workers=2) as plane:
            await plane.register(spec(min_instances=2))

            async def loads() -> bool:
                return (await plane.records())[-1].state == "loading"

            await plane.until(loads)
            await plane.kill("worker-1")
            plane.add_worker(2)
            await plane.until_serving(2)
            assert await plane.serving() == ["worker-0", "worker-2"]
            failed = [record for record in await plane.records() if record.state == "failed"]
            assert failed[0].outcome.startswith("worker-1 is gone: silent for 2.")

    virtual_time.run(main(), limit_seconds=100)


@pytest.mark.parametrize(
    ("faults", "outcome"),
    [
        (Faults(refuse_loads=True), "worker-1 did not load: the arena is broken"),
        (Faults(break_after_blocks=2), "worker-1: the peer is gone"),
        (Faults(stall_after_blocks=2), "nothing arrived for 5."),
    ],
    ids=["refuses", "breaks", "stalls"],
)
def test_a_target_that_does_not_load_is_given_up_and_freed(faults: Faults, outcome: str) -> None:
    async def main() -> None:
        async with control_plane(workers=1, patience=5.0) as plane:
            broken = plane.add_worker(1, faults)
            await asyncio.sleep(1.0)
            with_two = await plane.scale(2)

            async def ended() -> bool:
                return (await plane.records())[-1].state != "loading"

            await plane.until(ended)
            record = next(record for record in await plane.records() if record.id == with_two.scale_id)
            assert record.state == "failed"
            assert record.outcome.startswith(outcome)
            assert phases(record)[-1] == "failed"
            assert broken.state == "spare"
            assert await plane.serving() == ["worker-0"]

    virtual_time.run(main(), limit_seconds=100)


def test_events_that_get_lost_do_not_stop_a_scale() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            plane.broker.lose = lambda subject: subject.startswith(("evt.transfer", "evt.instance", "evt.layer"))
            await plane.register(spec(min_instances=2))
            await plane.until_serving(2)
            plane.broker.lose = lambda subject: False
            assert (await plane.records())[-1].state == "done"

    virtual_time.run(main(), limit_seconds=100)
