"""Roles that the load changes, in the whole system: requests are served right whatever goes wrong meanwhile."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from msgspec.structs import replace

from livescale.load.records import Ask, find_fault
from livescale.load.simulate.client import replay
from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.load.simulate.start import flat_topology, quiet, until
from livescale.services.monitor.settings import MonitorSettings
from livescale.services.planner.settings import PlannerSettings
from livescale.services.router.settings import RouterSettings
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import AskSnapshot, Named
from livescale.shared.messages.scaling import AskScales, ScaleRecord
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import MANIFEST, SCALES, SNAPSHOT
from tests.load.simulate.clusters import asks, registered, settings, undisturbed, until_serving

BOTH = asks(60, rate=60.0, prompt=600, tokens=40)  # more than one can prefill, and more than one decode, at once
LONG_ANSWERS = [replace(ask, index=ask.index + 500) for ask in asks(40, rate=60.0, prompt=60, tokens=120)]
LONG_PROMPTS = [replace(ask, index=ask.index + 1_000) for ask in asks(24, rate=40.0, prompt=900, tokens=2)]
Disturb = Callable[[VirtualCluster], Coroutine[None, None, None]]


def role_settings(*, keep_parameters: bool = True) -> VirtualClusterSettings:
    base = settings(5)
    return replace(
        base,
        topology=flat_topology(5, 3e7),  # which carry KV faster than an instance makes it, as they do for an 8B model
        router=RouterSettings(disaggregation="on"),
        planner=PlannerSettings(live="zigzag", disaggregation="on"),
        monitor=MonitorSettings(disaggregation="on"),
        worker=replace(base.worker, max_num_seqs=16, keep_parameters=keep_parameters),
    )


async def scales(made: VirtualCluster) -> list[ScaleRecord]:
    try:
        return (await made.operator.call(SCALES, AskScales(model="m", limit=100), timeout=5.0)).records
    except BusError:
        return []


async def of_role(made: VirtualCluster, role: str) -> list[str]:
    workers: list[WorkerReport] = (await made.operator.call(SNAPSHOT, AskSnapshot(), timeout=5.0)).workers
    return [one.id for one in workers if one.role == role and one.state == "serving"]


async def scaled(made: VirtualCluster, holds: Callable[[ScaleRecord], bool]) -> ScaleRecord:
    """Wait for a scale of which this holds."""
    found: list[ScaleRecord] = []

    async def some() -> bool:
        found[:] = filter(holds, await scales(made))
        return bool(found)

    await until(some)
    return found[0]


async def mutated(made: VirtualCluster, role: str = "decode") -> ScaleRecord:
    """Wait for a scale in which an instance gets this role."""
    return await scaled(made, lambda one: any(move.role == role for move in one.moves))


async def right(made: VirtualCluster, requests: list[Ask]) -> None:
    """Send requests, and check that none was lost and every token is that of an undisturbed request."""
    records = await replay(made.gateway, "m", requests)
    manifest: Manifest = await made.operator.call(MANIFEST, Named(model="m"), timeout=5.0)
    assert [find_fault(record) for record in records] == [None] * len(requests)
    for record, ask in zip(records, requests, strict=True):
        assert record.token_ids == undisturbed(ask, manifest.version)


def played(act: Disturb, instances: int = 3, most: int = 4, *, keep_parameters: bool = True) -> None:
    async def main() -> None:
        async with virtual_cluster(role_settings(keep_parameters=keep_parameters)) as made:
            await registered(made, min_instances=instances, max_instances=most, downscale_delay_s=2)
            await until_serving(made, instances)
            await act(made)

    with quiet():
        virtual_time.run(main(), limit_seconds=600)


def test_decode_grows_by_a_mutation_with_prefill_loaded_in_its_place_and_gives_back_under_the_next_load() -> None:
    async def act(made: VirtualCluster) -> None:
        before = {worker.id: worker.plan_id for worker in await leaders(made)}
        await right(made, BOTH)
        record = await mutated(made)
        [move] = record.moves
        assert record.plan is not None
        assert [one.role for one in record.plan.instances] == ["prefill"]
        at = {phase.name: phase.at for phase in record.phases}
        assert at["switched"] - record.decision.at < 0.02 < at["whole"] - record.decision.at
        after = {worker.id: worker.plan_id for worker in await leaders(made)}
        assert after[move.worker] == before[move.worker]  # nothing was loaded for it
        await asyncio.sleep(6.0)  # until it is no longer needed there
        await right(made, LONG_ANSWERS)
        await right(made, LONG_PROMPTS)
        assert (await mutated(made, "prefill")).decision.rule == "prefill"

    played(act, keep_parameters=False)  # else those that decoded would be parked, and others come at once


async def leaders(made: VirtualCluster) -> list[WorkerReport]:
    return (await made.operator.call(SNAPSHOT, AskSnapshot(), timeout=5.0)).workers


async def ended(made: VirtualCluster) -> bool:
    return all(record.state in ("done", "failed") for record in await scales(made))


async def planner_dies(made: VirtualCluster) -> None:
    await mutated(made)
    await made.kill("planner-0")
    await asyncio.sleep(0.3)
    made.start("planner-0")


async def mutated_dies(made: VirtualCluster) -> None:
    [move] = (await mutated(made)).moves
    await asyncio.sleep(0.3)
    await made.kill(move.worker)


async def replacement_dies(made: VirtualCluster) -> None:
    """Prompts may wait only after the mutation. Then what takes its place is loaded by a scale of its own."""
    before = {one.decision.id for one in await scales(made)}
    plan = (await scaled(made, lambda one: one.plan is not None and one.decision.id not in before)).plan
    assert plan is not None
    await asyncio.sleep(0.1)
    assert plan.instances[0].role == "prefill"
    await made.kill(plan.instances[0].ranks[0])


async def orders_are_lost(made: VirtualCluster) -> None:
    """The first two orders do not come."""
    left = [2]

    def lose(subject: str) -> bool:
        is_order = subject.endswith(".role") and "worker" in subject
        left[0] -= is_order
        return is_order and left[0] >= 0

    made.broker.lose = lose
    await mutated(made)


async def orders_come_twice(made: VirtualCluster) -> None:
    delays = made.broker.delays
    made.broker.delays = lambda subject: (*delays(subject), 0.3) if subject.endswith(".role") else delays(subject)


FAULTS = [planner_dies, mutated_dies, orders_are_lost]
SELDOM = [pytest.param(fault, marks=pytest.mark.slow) for fault in (replacement_dies, orders_come_twice)]


@pytest.mark.parametrize("fault", [*FAULTS, *SELDOM])
def test_whatever_happens_during_a_mutation_every_request_is_served_right(fault: Disturb) -> None:
    async def act(made: VirtualCluster) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(right(made, BOTH))
            group.create_task(fault(made))
        await until_serving(made, 3)
        assert len(await of_role(made, "prefill")) >= 1
        assert len(await of_role(made, "decode")) >= 1
        await until(lambda: ended(made))

    played(act)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_when_the_last_of_a_role_is_gone_and_no_worker_is_spare_another_takes_its_place(role: str) -> None:
    async def act(made: VirtualCluster) -> None:
        for id in await spares(made):
            await made.kill(id)
        lost = await of_role(made, role)
        async with asyncio.TaskGroup() as group:
            group.create_task(right(made, BOTH))
            await asyncio.sleep(0.5)
            for id in lost:
                await made.kill(id)
        if len(await of_role(made, "prefill")) + len(await of_role(made, "decode")) > 1:
            assert await of_role(made, role)

    played(act, most=3)


async def spares(made: VirtualCluster) -> list[str]:
    return [worker.id for worker in await leaders(made) if worker.state == "spare"]
