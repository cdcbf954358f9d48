"""Instances of two workers each, one of which is live while it loads: real processes, and links so slow that it shows.

All streams, wherever their layers were run, have the tokens of an undisturbed run.
"""

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.system.conftest import started
from tests.system.scaling import HANDED_OVER, LAYERS_RUN, WORKERS, ScalingSystem, count, is_busy, targets, watching
from tests.system.under_load import SystemUnderLoad, at_once

RATE = 1e6  # bytes a second


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemUnderLoad]:
    streams = at_once("m", "float32", 16, 80, "qwen2", ranks=2)
    options = "--workers", str(WORKERS), "--tensor-parallel-size", "2", "--link-rate", str(RATE), "--live", "zigzag"
    with started(tmp_path_factory.mktemp("live-ranks"), *options, family="qwen2") as running:
        yield SystemUnderLoad(running, streams)


@asynccontextmanager
async def going_live(loaded: SystemUnderLoad) -> AsyncIterator[tuple[ScalingSystem, list[str], list[str]]]:
    """The ranks of an instance that serves and helps, and of one that has just become live; in the end both serve."""
    async with watching(loaded) as scaling:
        watch = scaling.watch
        await scaling.rest(1, ranks=2)
        source = sorted(watch.serving(), key=lambda id: watch.reports[id].rank)
        await scaling.have(2)
        await watch.until(lambda: len(targets(scaling)) == 1, "it is live")
        [leader] = targets(scaling)
        instance = watch.reports[leader].instance
        other = next(id for id, one in watch.reports.items() if one.instance == instance and one.rank == 1)
        await watch.until(lambda: watch.reports[source[0]].helping == [leader], "it is helped")
        yield scaling, source, [leader, other]
        await watch.until(lambda: len(watch.serving()) == WORKERS, "all serve")
        await watch.until(lambda: not any(map(is_busy, watch.reports.values())), "nothing is left of any request")


@pytest.mark.system
@pytest.mark.slow
async def test_requests_are_run_by_both_instances_with_the_tokens_of_an_undisturbed_run(
    loaded: SystemUnderLoad,
) -> None:
    async with going_live(loaded) as (scaling, _, _):
        before = await count(scaling, HANDED_OVER), await count(scaling, LAYERS_RUN)
        loading = scaling.load()
        await scaling.watch.until(lambda: len(scaling.watch.serving()) == WORKERS, "all serve")
        loaded.check("live", await loading)
        assert await count(scaling, HANDED_OVER) > before[0]
        assert await count(scaling, LAYERS_RUN) > before[1]
        assert await count(scaling, "livescale_worker_lost_kv_total") == 0


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("whom", ["target 1", "target 0", "source 1", "source 0"])
async def test_whichever_rank_is_killed_in_mid_live_its_requests_go_on(loaded: SystemUnderLoad, whom: str) -> None:
    async with going_live(loaded) as (scaling, source, target):
        loading = scaling.load()
        await scaling.watch.until(lambda: bool(scaling.watch.speakers), "somebody makes tokens")
        role, rank = whom.split()
        victim = (source if role == "source" else target)[int(rank)]
        await scaling.signal(victim, signal.SIGKILL)
        scaling.watch.lose(victim)
        loaded.check(f"{whom} killed", await loading)
