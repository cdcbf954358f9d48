"""Execution pipelines of instances of two workers each: real processes, and links so slow that a model takes a while.

All streams, wherever their layers were run, have the tokens of an undisturbed run.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from livescale.shared.messages.parameters import DType
from tests.system.conftest import started
from tests.system.scaling import ScalingSystem, count, is_busy, watching
from tests.system.test_pipelines import STEPS, leaders
from tests.system.under_load import SystemUnderLoad, at_once

pytestmark = [pytest.mark.system, pytest.mark.slow]

RATE = {"float32": 0.4e6, "bfloat16": 0.2e6}  # bytes a second: ten seconds for the shards of both instances
WORKERS, INSTANCES = 6, 3


@pytest.fixture(scope="module")
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemUnderLoad]:
    dtype: DType = request.param
    streams = at_once("m", dtype, 12, 80, "qwen2", ranks=2)
    ranks = "--workers", str(WORKERS), "--tensor-parallel-size", "2", "--dtype", dtype
    options = *ranks, "--link-rate", str(RATE[dtype]), "--live", "pipeline"
    with started(tmp_path_factory.mktemp("rank-pipelines"), *options, family="qwen2") as running:
        yield SystemUnderLoad(running, streams)


@asynccontextmanager
async def running(loaded: SystemUnderLoad) -> AsyncIterator[tuple[ScalingSystem, str, str]]:
    """Three instances load from the host, each passing blocks on, and have just become a pipeline: the leader, and the
    first of another. In the end all serve, or others in their place."""
    async with watching(loaded) as scaling:
        watch = scaling.watch
        await scaling.rest(0, ranks=2, workers=WORKERS)
        await scaling.have(INSTANCES)
        await watch.until(lambda: bool(leaders(scaling)), "a pipeline serves")
        [leader] = leaders(scaling)
        others = [one.id for one in watch.reports.values() if one.pipeline == leader.pipeline and one.id != leader.id]
        yield scaling, leader.id, others[0]
        await watch.until(lambda: len(watch.serving()) == 2 * INSTANCES, "all serve")
        await watch.until(lambda: not any(map(is_busy, watch.reports.values())), "nothing is left of any request")
        assert not any(report.pipeline for report in watch.reports.values())


def ranks(scaling: ScalingSystem, first: str) -> list[str]:
    """The workers of its instance."""
    reports = scaling.watch.reports
    mine = [one for one in reports.values() if one.instance == reports[first].instance]
    return [one.id for one in sorted(mine, key=lambda one: one.rank)]


@pytest.mark.parametrize("loaded", ["float32", "bfloat16"], indirect=True)
async def test_instances_of_two_workers_are_a_pipeline_and_then_each_serves(loaded: SystemUnderLoad) -> None:
    async with running(loaded) as (scaling, leader, _):
        before = await count(scaling, STEPS)
        loading = scaling.load()
        reports = scaling.watch.reports
        await scaling.watch.until(
            lambda: sum(one.pipeline is not None for one in reports.values()) > 1, "its first workers"
        )
        assert {one.rank for one in reports.values() if one.pipeline is not None} == {0}
        await scaling.watch.until(lambda: leader in scaling.watch.speakers, "it makes tokens")
        await scaling.watch.until(lambda: len(scaling.watch.serving()) == 2 * INSTANCES, "all serve")
        loaded.check("pipeline", await loading)
        assert await count(scaling, STEPS) > before
        told = await asyncio.to_thread(loaded.system.command, "why", scaling.model)
        assert "pipeline of " in told.stdout


@pytest.mark.parametrize("loaded", ["float32"], indirect=True)
@pytest.mark.parametrize("whom", ["leader 0", "leader 1", "other 0", "other 1"])
async def test_whichever_rank_is_killed_its_requests_go_on(loaded: SystemUnderLoad, whom: str) -> None:
    async with running(loaded) as (scaling, leader, other):
        loading = scaling.load()
        await scaling.watch.until(lambda: leader in scaling.watch.speakers, "it makes tokens")
        role, rank = whom.split()
        victim = ranks(scaling, leader if role == "leader" else other)[int(rank)]
        await scaling.signal(victim, signal.SIGKILL)
        scaling.watch.lose(victim)
        loaded.check(f"{whom} killed", await loading)
