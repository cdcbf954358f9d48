"""Transfers under way: new receivers join them, and another sender takes over when one sends damaged blocks."""

from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.simulation import virtual_time
from tests.control.control_plane import ControlPlane, control_plane, spec
from tests.control.fake_worker import Faults
from tests.control.fakes import BLOCKS
from tests.control.queries import fake, replanned, until_ended, until_half_way


def hops(record: ScaleRecord) -> list[tuple[str, str]]:
    assert record.plan is not None
    return [(flow.sender, flow.receiver) for flow in record.plan.flows]


def received_once(plane: ControlPlane, *ids: str) -> bool:
    return all(sorted(fake(plane, id).received) == list(range(BLOCKS)) for id in ids)


def test_a_second_burst_joins_the_first_at_a_worker_that_has_a_part() -> None:
    async def main() -> None:
        async with control_plane(workers=4) as plane:
            await plane.register(spec(max_instances=4, downscale_delay_s=99.0))
            await plane.kill("host-0")
            first = await plane.scale(2)
            await until_half_way(plane, "worker-1")
            second = await plane.scale(4)
            assert fake(plane, "worker-1").state == "loading"
            record = await until_ended(plane, second.scale_id)
            # worker-0 still sends for the first: it is not asked for the same bytes again.
            assert hops(record) == [("worker-1", "worker-2"), ("worker-2", "worker-3")]
            assert (record.state, (await until_ended(plane, first.scale_id)).state) == ("done", "done")
            assert received_once(plane, "worker-1", "worker-2", "worker-3")

    virtual_time.run(main(), limit_seconds=100)


def test_what_a_sender_gave_damaged_comes_from_another() -> None:
    """The flow is lost as for any other reason; its sender lives, and is passed over."""

    async def main() -> None:
        async with control_plane(workers=1) as plane:
            await plane.register(spec(max_instances=2, downscale_delay_s=99.0))
            plane.add_worker(1, Faults(strand_after_blocks=2))
            await plane.until(lambda: is_spare(plane, "worker-1"))
            record = await until_ended(plane, (await plane.scale(2)).scale_id)
            assert replanned(record) == [("worker-1", "the peer is gone; now from host-0")]
            assert hops(record) == [("host-0", "worker-1")]
            assert received_once(plane, "worker-1")
            assert "worker-0" in await plane.serving()

    virtual_time.run(main(), limit_seconds=100)


def test_a_scale_that_is_given_up_frees_targets_and_senders() -> None:
    async def main() -> None:
        async with control_plane(workers=1, patience=2.0) as plane:
            await plane.register(spec(max_instances=2))
            plane.add_worker(1, Faults(stall_after_blocks=2))
            await plane.until(lambda: is_spare(plane, "worker-1"))
            record = await until_ended(plane, (await plane.scale(2)).scale_id)
            assert record.outcome.startswith("nothing arrived for")
            for id in ("worker-0", "worker-1"):
                assert [abort.plan_id for abort in fake(plane, id).aborts] == [record.id]
            await plane.until(lambda: is_spare(plane, "worker-1"))

    virtual_time.run(main(), limit_seconds=100)


async def is_spare(plane: ControlPlane, id: str) -> bool:
    return any((one.id, one.state) == (id, "spare") for one in (await plane.snapshot()).workers)
