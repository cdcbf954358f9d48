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
from tests.system.conftest import started
from tests.system.scaling import WORKERS, ScalingSystem, count, is_busy, watching
from tests.system.structured import structured_answers
from tests.system.under_load import SystemUnderLoad, at_once, register

pytestmark = [pytest.mark.system, pytest.mark.slow]

MODELS: tuple[tuple[str, DType], ...] = (("m", "float32"), ("half", "bfloat16"))
STREAMS, TOKENS_EACH = 9, 120
ROUTER = "router-0"
RATE = {"m": 0.6e6, "half": 0.3e6}  # bytes a second: some seconds for a whole model
STEPS, LOST = "livescale_worker_pipeline_steps_total", "livescale_router_lost_total"


@pytest.fixture(scope="module", params=MODELS, ids=[model for model, _ in MODELS])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemUnderLoad]:
    """Four workers behind slow links."""
    model, dtype = request.param
    streams = at_once(model, dtype, STREAMS, TOKENS_EACH)
    options = "--workers", str(WORKERS), "--link-rate", str(RATE[model]), "--live", "pipeline"
    with started(tmp_path_factory.mktemp("pipelines"), *options) as system:
        if model != "m":
            spec = {"name": model, "path": str(tiny_checkpoint("llama")), "dtype": dtype, "min_instances": 0}
            asyncio.run(register(system.url, spec))
        yield SystemUnderLoad(system, streams)


def leaders(scaling: ScalingSystem) -> list[WorkerReport]:
    """Workers that lead a pipeline, and take requests."""
    reports = scaling.watch.reports.values()
    return [report for report in reports if report.state == "live" and report.pipeline is not None]


@asynccontextmanager
async def running(loaded: SystemUnderLoad) -> AsyncIterator[tuple[ScalingSystem, str]]:
    """One instance serves, and three more load; of these some have just become a pipeline, which this one leads."""
    async with watching(loaded) as scaling:
        watch = scaling.watch
        await scaling.rest(1)
        await scaling.have(4)
        await watch.until(lambda: bool(leaders(scaling)), "a pipeline serves")
        yield scaling, leaders(scaling)[0].id
        await watch.until(lambda: len(watch.serving(scaling.model)) == 4, "all serve")
        await watch.until(lambda: not any(map(is_busy, watch.reports.values())), "nothing is left of any request")
        assert not any(report.pipeline for report in watch.reports.values())


async def test_a_pipeline_makes_the_tokens_of_an_undisturbed_run_and_then_each_of_its_workers_does(
    loaded: SystemUnderLoad,
) -> None:
    async with running(loaded) as (scaling, leader):
        before, lost = await count(scaling, STEPS), await count(scaling, LOST, ROUTER)
        loading = scaling.load()
        await scaling.watch.until(lambda: leader in scaling.watch.speakers, "it makes tokens")
        shown = await asyncio.to_thread(loaded.system.status)
        assert all({"pipeline", "stage"} <= one.keys() for one in shown["workers"])
        await scaling.watch.until(lambda: len(scaling.watch.serving(scaling.model)) == 4, "all serve")
        await scaling.check("pipeline", loading)
        assert await count(scaling, STEPS) > before
        assert await count(scaling, LOST, ROUTER) == lost, "what moves as it ends is nobody's to begin anew"
        told = await asyncio.to_thread(loaded.system.command, "why", scaling.model)
        assert "pipeline" in told.stdout


async def test_a_pipeline_answers_by_a_schema_with_the_tokens_of_one_worker(loaded: SystemUnderLoad) -> None:
    async with running(loaded) as (scaling, leader):
        url, model = loaded.system.url, scaling.model
        before = await count(scaling, STEPS)
        made = await structured_answers(url, model)
        assert leader in scaling.watch.speakers
        assert await count(scaling, STEPS) > before
        await scaling.watch.until(lambda: len(scaling.watch.serving(model)) == 4, "all serve")
        assert made == await structured_answers(url, model)


@pytest.mark.parametrize("whom", ["leader", "another"])
async def test_requests_go_on_when_any_worker_is_killed(loaded: SystemUnderLoad, whom: str) -> None:
    async with running(loaded) as (scaling, leader):
        loading = scaling.load()
        await scaling.watch.until(lambda: leader in scaling.watch.speakers, "it makes tokens")
        pipeline = scaling.watch.reports[leader].pipeline
        others = [one.id for one in scaling.watch.reports.values() if one.pipeline == pipeline and one.id != leader]
        victim = leader if whom == "leader" else others[0]
        await scaling.signal(victim, signal.SIGKILL)
        scaling.watch.lose(victim)
        await scaling.watch.until(lambda: len(scaling.watch.serving(scaling.model)) == 4, "four serve")
        await scaling.check(f"{whom} killed", loading)
