"""An instance that drains is taken back before anything is loaded, in the whole system."""

import asyncio

from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.start import quiet, until, workers_in
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.registry import AskSnapshot
from livescale.shared.messages.scaling import AskScales, Scale, ScaleAccepted, ScaleRecord
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import SCALE, SCALES, SNAPSHOT
from tests.load.simulate.clusters import asks, registered, settings, until_serving
from tests.load.simulate.test_roles import right

LONG = asks(8, rate=100.0, prompt=64, tokens=300)


async def scale(made: VirtualCluster, instances: int) -> ScaleAccepted:
    return await made.operator.call(SCALE, Scale(model="m", instances=instances), timeout=5.0)


async def instances(made: VirtualCluster) -> dict[str, str | None]:
    workers: list[WorkerReport] = (await made.operator.call(SNAPSHOT, AskSnapshot(), timeout=5.0)).workers
    return {one.id: one.instance for one in workers if one.state == "serving"}


def test_an_instance_that_drains_serves_again_without_any_byte_and_its_requests_go_on() -> None:
    async def act(made: VirtualCluster) -> None:
        await registered(made)
        await scale(made, 2)
        await until_serving(made, 2)
        before = await instances(made)
        async with asyncio.TaskGroup() as group:
            group.create_task(right(made, LONG))
            await asyncio.sleep(0.5)
            await scale(made, 1)

            async def drains() -> bool:
                return bool(await workers_in(made, "draining"))

            await until(drains)
            answer = await scale(made, 2)
            assert (answer.scale_id, answer.actual, answer.recalled) == (None, 2, 1)
            await until_serving(made, 2)
            assert await instances(made) == before
        records: list[ScaleRecord] = (
            await made.operator.call(SCALES, AskScales(model="m", limit=100), timeout=5.0)
        ).records
        last = records[-1]
        assert (last.decision.action, last.state, last.instances) == ("in", "done", [])
        at = {phase.name: phase.at for phase in last.phases}
        assert "recalled" in at
        await right(made, [LONG[0].__class__(99, 0.0, LONG[0].prompt, 4)])

    async def main() -> None:
        async with virtual_cluster(settings(2)) as made:
            await act(made)

    with quiet():
        virtual_time.run(main(), limit_seconds=300)


def test_an_instance_that_has_drained_serves_again_from_what_it_kept() -> None:
    async def act(made: VirtualCluster) -> None:
        await registered(made)
        await scale(made, 2)
        await until_serving(made, 2)
        before = set(await instances(made))
        await scale(made, 1)

        async def parked() -> bool:
            return bool(await workers_in(made, "spare"))

        await until(parked)
        sent = sum(made.links.flows.network_bytes.values())
        async with asyncio.TaskGroup() as group:
            group.create_task(right(made, LONG))
            await asyncio.sleep(0.2)
            await scale(made, 2)
            await until_serving(made, 2)
            assert sum(made.links.flows.network_bytes.values()) == sent
        assert set(await instances(made)) == before
        await right(made, [LONG[0].__class__(99, 0.0, LONG[0].prompt, 4)])

    async def main() -> None:
        async with virtual_cluster(settings(2)) as made:
            await act(made)

    with quiet():
        virtual_time.run(main(), limit_seconds=300)
