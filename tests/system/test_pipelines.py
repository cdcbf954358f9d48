"""Execution pipelines with real processes, and links so slow that a model takes a while.

All streams, wherever their layers were run, have the tokens of an undisturbed run.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.parameters import DType
from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import start, stop
from tests.system.scaling import WORKERS, ScalingSystem, count, is_busy, watching
from tests.system.under_load import SystemUnderLoad, at_once, register

pytestmark = [pytest.mark.system, pytest.mark.slow]

MODELS: tuple[tuple[str, DType], ...] = (("m", "float32"), ("half", "bfloat16"))
STREAMS, TOKENS_EACH = 9, 120
ROUTER = "router-0"
RATE = {"m": 0.6e6, "half": 0.3e6}  # bytes a second: some seconds for a whole model
STEPS, LOST = "livescale_worker_pipeline_steps_total", "livescale_router_lost_total"


@pytest.fixture(scope="module", params=MODELS, ids=[model for model, _ in MODELS])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemUnderLoad]:
    """Four workers behind slow links."""
    model, dtype = request.param
    streams = at_once(model, dtype, STREAMS, TOKENS_EACH)
    options = "--workers", str(WORKERS), "--link-rate", str(RATE[model]), "--live", "pipeline"
    system = start(tmp_path_factory.mktemp("pipelines"), *options)
    try:
        if model != "m":
            spec = {"name": model, "path": str(tiny_checkpoint("llama")), "dtype": dtype, "min_instances": 0}
            asyncio.run(register(system.url, spec))
        yield SystemUnderLoad(system, streams)
    finally:
        assert stop(system) == 0


def leaders(site: ScalingSystem) -> list[WorkerReport]:
    """Workers that lead a pipeline, and take requests."""
    reports = site.watch.reports.values()
    return [report for report in reports if report.state == "live" and report.pipeline is not None]


@asynccontextmanager
async def running(stage: SystemUnderLoad) -> AsyncIterator[tuple[ScalingSystem, str]]:
    """One instance serves, and three more load; of these some have just become a pipeline, which this one leads."""
    async with watching(stage) as site:
        watch = site.watch
        await site.rest(1)
        await site.have(4)
        await watch.until(lambda: bool(leaders(site)), "a pipeline serves")
        yield site, leaders(site)[0].id
        await watch.until(lambda: len(watch.serving(site.model)) == 4, "all serve")
        await watch.until(lambda: not any(map(is_busy, watch.reports.values())), "nothing is left of any request")
        assert not any(report.pipeline for report in watch.reports.values())


async def test_a_pipeline_makes_the_tokens_of_an_undisturbed_run_and_then_each_of_its_workers_does(
    stage: SystemUnderLoad,
) -> None:
    async with running(stage) as (site, leader):
        before, lost = await count(site, STEPS), await count(site, LOST, ROUTER)
        loading = site.load()
        await site.watch.until(lambda: leader in site.watch.speakers, "it makes tokens")
        shown = await asyncio.to_thread(stage.system.status)
        assert all({"pipeline", "stage"} <= one.keys() for one in shown["workers"])
        await site.watch.until(lambda: len(site.watch.serving(site.model)) == 4, "all serve")
        await site.check("pipeline", loading)
        assert await count(site, STEPS) > before
        assert await count(site, LOST, ROUTER) == lost, "what moves as it ends is nobody's to begin anew"
        told = await asyncio.to_thread(stage.system.command, "why", site.model)
        assert "pipeline" in told.stdout


@pytest.mark.parametrize("whom", ["leader", "another"])
async def test_whoever_is_killed_its_requests_go_on(stage: SystemUnderLoad, whom: str) -> None:
    async with running(stage) as (site, leader):
        loading = site.load()
        await site.watch.until(lambda: leader in site.watch.speakers, "it makes tokens")
        pipeline = site.watch.reports[leader].pipeline
        others = [one.id for one in site.watch.reports.values() if one.pipeline == pipeline and one.id != leader]
        victim = leader if whom == "leader" else others[0]
        await site.signal(victim, signal.SIGKILL)
        site.watch.lose(victim)
        await site.watch.until(lambda: len(site.watch.serving(site.model)) == 4, "four serve")
        await site.check(f"{whom} killed", loading)
