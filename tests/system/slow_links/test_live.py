"""Instances that work from their first layer on, with real processes and slow links.

All streams, wherever their layers were run, have the tokens of an undisturbed run.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest

from livescale.shared.messages.parameters import DType, Family
from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import System
from tests.system.scaling import HANDED_OVER, LAYERS_RUN, ScalingSystem, count, is_busy, targets, watching
from tests.system.slow_links.conftest import two_models
from tests.system.structured import structured_answers
from tests.system.under_load import SystemUnderLoad, at_once

MODELS: tuple[tuple[str, DType, Family], ...] = (("m", "float32", "llama"), ("half", "bfloat16", "qwen2"))
STREAMS, TOKENS_EACH = 9, 80


@pytest.fixture(scope="module")
def stages(slow_system: System) -> Iterator[dict[str, SystemUnderLoad]]:
    """A model in each of two formats, one of them with its matrices in panels."""
    streams = [at_once(model, dtype, STREAMS, TOKENS_EACH, family) for model, dtype, family in MODELS]
    with two_models(slow_system, streams, path=str(tiny_checkpoint("qwen2")), layout="panels") as made:
        yield made


@asynccontextmanager
async def going_live(loaded: SystemUnderLoad, instances: int) -> AsyncIterator[tuple[ScalingSystem, str, list[str]]]:
    """One instance serves and helps; so many more than one are live, and have just become it."""
    async with watching(loaded) as scaling:
        watch = scaling.watch
        await scaling.rest(1)
        [source] = watch.serving()
        await scaling.have(instances)
        await watch.until(lambda: len(targets(scaling)) == instances - 1, "they are live")
        live = targets(scaling)
        await watch.until(lambda: watch.reports[source].helping == live, "they are helped")
        yield scaling, source, live
        await watch.until(lambda: len(watch.serving(scaling.model)) == instances, "all serve")
        await watch.until(lambda: not any(map(is_busy, watch.reports.values())), "nothing is left of any request")


@pytest.mark.system
@pytest.mark.parametrize(("model", "instances"), [("m", 3), pytest.param("half", 2, marks=pytest.mark.slow)])
async def test_requests_are_run_by_who_loads_and_who_helps_with_the_tokens_of_an_undisturbed_run(
    stages: dict[str, SystemUnderLoad], model: str, instances: int
) -> None:
    async with going_live(stages[model], instances) as (scaling, _, _):
        before = await count(scaling, HANDED_OVER), await count(scaling, LAYERS_RUN)
        loading = scaling.load()
        await scaling.watch.until(lambda: bool(scaling.watch.speakers), "somebody makes tokens")
        shown = await asyncio.to_thread(stages[model].system.status)
        assert {one["state"] for one in shown["workers"] if one["helping"]} <= {"serving"}
        await scaling.watch.until(lambda: len(scaling.watch.serving(model)) == instances, "all serve")
        await scaling.check("live", loading)
        assert await count(scaling, HANDED_OVER) > before[0]
        assert await count(scaling, LAYERS_RUN) > before[1]
        told = await asyncio.to_thread(stages[model].system.command, "why", model)
        assert "take requests over from" in told.stdout
        assert "live at" in told.stdout


@pytest.mark.system
@pytest.mark.slow
async def test_answers_by_a_schema_keep_their_tokens_through_a_live_scale(stages: dict[str, SystemUnderLoad]) -> None:
    url = stages["m"].system.url
    async with going_live(stages["m"], 3) as (scaling, _, _):
        before = await count(scaling, HANDED_OVER)
        made = [await structured_answers(url) for _ in range(2)]
        await scaling.watch.until(lambda: len(scaling.watch.serving("m")) == 3, "all serve")
        assert await count(scaling, HANDED_OVER) > before
        expected = await structured_answers(url)
        assert made == [expected, expected]


@pytest.mark.system
@pytest.mark.parametrize(
    ("whom", "model"),
    [
        ("source", "half"),
        pytest.param("target", "m", marks=pytest.mark.slow),
        pytest.param("planner", "m", marks=pytest.mark.slow),
    ],
)
async def test_requests_go_on_when_any_worker_is_killed_in_a_live_scale(
    stages: dict[str, SystemUnderLoad], whom: str, model: str
) -> None:
    async with going_live(stages[model], 2) as (scaling, source, [target]):
        loading = scaling.load()
        await scaling.watch.until(lambda: bool(scaling.watch.speakers), "a request was handed over")
        victim = {"target": target, "source": source, "planner": "planner-0"}[whom]
        await scaling.signal(victim, signal.SIGKILL)
        scaling.watch.lose(victim)
        await scaling.watch.until(lambda: len(scaling.watch.serving(model)) == 2, "two serve")
        await scaling.check(f"{whom} killed", loading)


@pytest.mark.system
@pytest.mark.slow
async def test_clients_that_leave_in_mid_live_leave_nothing_behind(stages: dict[str, SystemUnderLoad]) -> None:
    async with going_live(stages["m"], 2) as (scaling, _, _), aiohttp.ClientSession(stages["m"].system.url) as session:
        body = {"model": "m", "prompt": [5] * 200, "max_tokens": 3_000, "ignore_eos": True, "stream": True}
        loading = scaling.load()
        for seconds in (0.005, 0.02, 0.05, 0.1, 0.2):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds), session.post("/v1/completions", json=body) as answer:
                    await answer.read()
        scaling.loaded.check("clients left", await loading)
