"""Two models on one pool under virtual time, both with more to do than it can do for both."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.simulate.client import replay
from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.load.simulate.start import quiet, register
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import Named
from livescale.shared.messages.scaling import AskScales, Decision, ScaleRecords
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import MANIFEST, SCALES
from tests.load.simulate.clusters import CONFIG, PATH, asks, model, registered, settings, undisturbed, until_serving

WORKERS = 3
OTHER = "/models/other"
MUCH = asks(120, rate=60.0, prompt=900, tokens=8)
LITTLE = [replace(ask, index=1_000 + ask.index) for ask in asks(12, rate=6.0, prompt=300, tokens=8)]


class Contest(msgspec.Struct, frozen=True):
    """What came of it, by model: requests and versions. `scales` are all decisions to scale, in order."""

    records: dict[str, list[RequestRecord]]
    versions: dict[str, str]
    scales: list[Decision]


def cluster_settings() -> VirtualClusterSettings:
    return replace(settings(WORKERS), models={PATH: CONFIG, OTHER: replace(CONFIG, num_hidden_layers=10)})


async def contest(priority: int) -> Contest:
    """The first model fills the pool; then the other one is asked for, with nothing that serves it."""
    async with virtual_cluster(cluster_settings()) as made:
        await registered(made)
        await register(made, model("other", OTHER, min_instances=0, priority=priority))
        first = asyncio.create_task(replay(made.gateway, "m", MUCH))
        await until_serving(made, WORKERS)
        second = asyncio.create_task(replay(made.gateway, "other", LITTLE))
        records = {"m": await first, "other": await second}
        versions = {name: await version_of(made, name) for name in records}
        return Contest(records, versions, await scales_of(made))


async def version_of(made: VirtualCluster, name: str) -> str:
    manifest: Manifest = await made.operator.call(MANIFEST, Named(model=name), timeout=5.0)
    return manifest.version


async def scales_of(made: VirtualCluster) -> list[Decision]:
    told: ScaleRecords = await made.operator.call(SCALES, AskScales(limit=1_000), timeout=5.0)
    return [record.decision for record in told.records]


@pytest.mark.parametrize("priority", [0, 1])
def test_a_model_that_nothing_serves_gets_an_instance_of_one_that_is_busy(priority: int) -> None:
    with quiet():
        result = virtual_time.run(contest(priority), limit_seconds=600)
    wanted: dict[str, list[Ask]] = {"m": MUCH, "other": LITTLE}
    for name, records in result.records.items():
        assert [find_fault(record) for record in records] == [None] * len(wanted[name])
        for record, ask in zip(records, wanted[name], strict=True):
            assert record.token_ids == undisturbed(ask, result.versions[name])
    assert [(one.model, one.target) for one in result.scales if one.rule == "yield"] == [("m", WORKERS - 1)]
