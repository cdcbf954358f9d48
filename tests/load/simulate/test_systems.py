"""Systems to compare with, under virtual time: tokens are right under each, and what makes it another one shows."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import pytest
from msgspec.structs import replace

from livescale.load.records import find_fault
from livescale.load.simulate.client import replay
from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.load.simulate.disk import ModelledDisk
from livescale.load.simulate.start import quiet, until, workers_in
from livescale.services.cli.systems import find_system
from livescale.services.host.stored import Stored
from livescale.services.planner.settings import PlannerSettings
from livescale.services.registry.settings import RegistrySettings
from livescale.services.supervisor.commands import control_flags
from livescale.services.supervisor.settings import StackSettings
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import AskSnapshot, Named, Snapshot
from livescale.shared.messages.scaling import AskScales, Scale, ScaleRecords
from livescale.shared.messages.transfers import Flow
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import MANIFEST, SCALE, SCALES, SNAPSHOT
from tests.control.queries import last_out
from tests.load.simulate.clusters import PATH, asks, registered, settings, undisturbed, until_serving

HOSTS = 3
ASKS = asks(24, rate=24.0, prompt=300, tokens=8)


def settings_of(name: str) -> VirtualClusterSettings:
    """A small cluster that is run as this system."""
    stack = StackSettings(workers=HOSTS, **find_system(name).values())  # type: ignore[arg-type]
    flags = {service: dict(control_flags(service, stack, None)) for service in ("registry", "planner")}
    base = settings(HOSTS)
    return replace(
        base,
        worker=replace(base.worker, keep_parameters=stack.keep_parameters),
        registry=RegistrySettings(**flags["registry"]),  # type: ignore[arg-type]
        planner=PlannerSettings(**flags["planner"]),  # type: ignore[arg-type]
    )


def played(name: str, act: Callable[[VirtualCluster], Awaitable[None]]) -> None:
    async def main() -> None:
        async with virtual_cluster(settings_of(name)) as made:
            await registered(made)
            await act(made)

    with quiet():
        virtual_time.run(main(), limit_seconds=600)


async def scaled(made: VirtualCluster, instances: int) -> None:
    await made.operator.call(SCALE, Scale(model="m", instances=instances), timeout=5.0)

    async def there() -> bool:
        return (
            len(await workers_in(made, "serving")) == instances
            and len(await workers_in(made, "spare")) == HOSTS - instances
        )

    await until(there)


async def scaled_out(made: VirtualCluster) -> list[Flow]:
    """All workers get an instance; how parameters came to the new ones."""
    await scaled(made, HOSTS)
    records: ScaleRecords = await made.operator.call(SCALES, AskScales(model="m", limit=100), timeout=5.0)
    plan = last_out(records.records).plan
    assert plan is not None
    return plan.flows


async def copies(made: VirtualCluster) -> list[str]:
    """The hosts that have all of the model."""
    found: Snapshot = await made.operator.call(SNAPSHOT, AskSnapshot(), timeout=5.0)
    return [host.id for host in found.hosts for one in host.holdings if one.version and len(one.ready) == one.total]


@pytest.mark.parametrize("name", ["serverlessllm", "allcache", "+network", "+zigzag", "lambdascale", "faasnet", "nccl"])
def test_a_burst_has_the_tokens_of_undisturbed_requests_under_every_system(name: str) -> None:
    async def act(made: VirtualCluster) -> None:
        replaying = asyncio.create_task(replay(made.gateway, "m", ASKS))
        await made.operator.call(SCALE, Scale(model="m", instances=HOSTS), timeout=5.0)
        records = await replaying
        await until_serving(made, HOSTS)
        manifest: Manifest = await made.operator.call(MANIFEST, Named(model="m"), timeout=5.0)
        assert [find_fault(record) for record in records] == [None] * len(ASKS)
        for record in records:
            assert record.token_ids == undisturbed(ASKS[record.index], manifest.version)

    played(name, act)


def test_serverlessllm_loads_from_memory_for_30_s_and_from_disk_after_them() -> None:
    async def act(made: VirtualCluster) -> None:
        first = await scaled_out(made)
        assert sorted(flow.from_disk for flow in first) == [True, True]
        assert len(await copies(made)) == HOSTS
        await scaled(made, 1)
        await asyncio.sleep(20.0)
        assert [flow.from_disk for flow in await scaled_out(made)] == [False, False]
        await scaled(made, 1)
        await asyncio.sleep(33.0)
        [serving] = await workers_in(made, "serving")
        assert await copies(made) == [f"host-{serving[-1]}"]  # of the machine that still serves it
        assert [flow.from_disk for flow in await scaled_out(made)] == [True, True]

    played("serverlessllm", act)


@pytest.mark.slow
def test_allcache_reads_the_disk_once_and_loads_from_the_memory_of_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    read_disk, reads = ModelledDisk.read, list[str]()

    def read(disk: ModelledDisk, stored: Stored, blocks: Mapping[int, memoryview]) -> AsyncGenerator[int, None]:
        reads.append(str(stored.checkpoint.directory))
        return read_disk(disk, stored, blocks)

    monkeypatch.setattr(ModelledDisk, "read", read)

    async def act(made: VirtualCluster) -> None:
        async def everywhere() -> bool:
            return len(await copies(made)) == HOSTS

        await until(everywhere)
        flows = await scaled_out(made)
        assert [flow.from_disk for flow in flows] == [False, False]
        assert {flow.sender[-1] for flow in flows} == {flow.receiver[-1] for flow in flows}
        await scaled(made, 1)
        await asyncio.sleep(400.0)
        assert await everywhere()
        assert reads == [PATH]

    played("allcache", act)
