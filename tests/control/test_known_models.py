"""Models whose version an earlier read left: they are loaded from a host that still reads them."""

from livescale.shared.simulation import virtual_time
from tests.control.control_plane import ControlPlane, control_plane, spec
from tests.control.fake_host import FakeHost
from tests.control.fake_worker import FakeWorker
from tests.control.fakes import BLOCKS

READ_SECONDS = 4.0


def knowing(plane: ControlPlane) -> FakeHost:
    host = plane.fabric["host-0"]
    assert isinstance(host, FakeHost)
    host.knows, host.read_seconds = True, READ_SECONDS
    return host


def received(plane: ControlPlane) -> list[int]:
    return [
        block
        for id in sorted(plane.fabric)
        if isinstance(node := plane.fabric[id], FakeWorker)
        for block in node.received
    ]


async def until_received(plane: ControlPlane, count: int) -> None:
    async def holds() -> bool:
        return len(received(plane)) >= count

    await plane.until(holds)


def test_a_model_is_loaded_while_its_host_reads_it() -> None:
    async def main() -> None:
        async with control_plane(workers=1, register=False) as plane:
            host = knowing(plane)
            entry = await plane.register(spec(min_instances=1))
            assert (entry.state, entry.version) == ("ready", "v-m")
            await until_received(plane, 1)
            assert 0 < len(host.holdings[0].ready) < BLOCKS
            await plane.until_serving(1)
            assert received(plane) == list(range(BLOCKS))
            [record] = await plane.records()
            assert record.plan is not None
            assert "from host-0: a host that is reading the model" in record.plan.reasons

    virtual_time.run(main(), limit_seconds=100)


def test_a_read_that_fails_midway_is_repeated_and_no_block_comes_twice() -> None:
    async def main() -> None:
        async with control_plane(workers=1, register=False) as plane:
            host = knowing(plane)
            host.break_after_blocks = 2
            await plane.register(spec(min_instances=1))
            await until_received(plane, 2)
            assert host.reads == ["m"]
            await plane.until_serving(1)
            assert host.reads == ["m", "m"]
            assert received(plane) == list(range(BLOCKS))

    virtual_time.run(main(), limit_seconds=100)


def test_a_read_that_never_succeeds_fails_the_scale_with_the_reason() -> None:
    async def main() -> None:
        async with control_plane(workers=1, register=False) as plane:
            host = knowing(plane)
            host.break_after_blocks = 2
            await plane.register(spec(min_instances=1))
            await until_received(plane, 2)
            host.unreadable, host.knows = "the disk is gone", False

            async def ended() -> bool:
                return (await plane.records())[-1].state == "failed"

            await plane.until(ended)
            assert "no worker or host has the whole model" in (await plane.records())[-1].outcome

    virtual_time.run(main(), limit_seconds=100)
