"""A worker that is about to go live: pulls that come early, and blocks in whatever order."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.transfers import Drain
from livescale.shared.simulation.virtual_time import run
from livescale.shared.subjects import DRAIN
from tests.worker.live.engines import BLOCKS
from tests.worker.live.live_scale import parked, with_live_scale
from tests.worker.live.pool import WorkerPool, worker_pool
from tests.worker.requests import random_prompt, submit


def waiting_for_the_first_layer(act: Callable[[WorkerPool], Awaitable[None]]) -> None:
    """A source that serves, and a request at a target that has no more than its embedding."""

    async def main() -> None:
        async with worker_pool("s", "t") as pool:
            await pool.beside("s", "t", [0])
            await pool.client.submit(submit("r", random_prompt(0, 90), max_tokens=8), "t")
            await act(pool)
            await pool.done()

    run(main(), limit_seconds=600)


def test_a_pull_that_waits_for_a_target_to_go_live_is_void_once_the_source_has_requests_of_its_own() -> None:
    async def main() -> None:
        async with worker_pool("s", "t") as pool:
            await pool.loaded("s")
            await pool.load("t", [1], "zigzag")
            await pool.help("s", "t")
            await asyncio.sleep(0.1)
            for number in range(4):
                await pool.client.submit(submit(f"own{number}", random_prompt(number, 50), max_tokens=60), "s")
            await asyncio.sleep(0.1)
            await pool.load("t", [0], "zigzag")
            await pool.until(lambda: pool.state("t") == "live")
            pool.act(pool.client.submit(submit("other", random_prompt(9, 300), max_tokens=1), "t"))
            await pool.until(lambda: pool.count("s", "pulled_tasks") == 1)
            assert pool.count("s", "pulled_layers") == 1
            await pool.finish_loading("t")
            await pool.done()

    run(main(), limit_seconds=600)


def test_what_waits_for_the_first_layer_is_taken_whole_by_a_source_that_has_nothing_to_do() -> None:
    async def act(pool: WorkerPool) -> None:
        await pool.help("s", "t")
        await pool.until(lambda: pool.count("s", "pulled_tasks") == 1)
        assert pool.count("s", "pulled_layers") == 0
        await pool.finish_loading("t")

    waiting_for_the_first_layer(act)


def test_what_waits_for_the_first_layer_is_given_back_by_a_target_that_gives_up() -> None:
    async def act(pool: WorkerPool) -> None:
        await pool.abort("t")
        await pool.until(lambda: pool.state("t") == "spare")

    waiting_for_the_first_layer(act)


def test_layers_that_came_before_the_first_are_run_after_it() -> None:
    async def main() -> None:
        async with worker_pool("t") as pool:
            await pool.load("t", [0, 2], "zigzag")
            await pool.until(lambda: pool.ready("t") == 2)
            assert pool.state("t") == "live"
            await pool.client.submit(submit("r", random_prompt(0, 90), max_tokens=1), "t")
            await asyncio.sleep(1.0)
            assert pool.reports["t"].live_waiting == 1
            assert pool.count("t", "live_layers") == 0
            await pool.load("t", [1], "zigzag")
            await pool.until(lambda: pool.count("t", "live_layers") == 2)
            await pool.finish_loading("t")
            await pool.done()

    run(main(), limit_seconds=600)


def test_a_target_that_was_whole_before_it_could_go_live_is_helped_no_more() -> None:
    async def whole() -> None:
        async with worker_pool("s", "t") as pool:
            await pool.loaded("s")
            await pool.load("t", [block for block in range(BLOCKS) if block != 1], "zigzag")
            await pool.help("s", "t")
            await pool.until(lambda: pool.reports["s"].helping == ["t"])
            await pool.load("t", [1], "zigzag")
            await pool.until(lambda: pool.ready("t") == BLOCKS)
            await pool.serve("t")
            await pool.until(lambda: pool.state("t") == "serving" and pool.reports["s"].helping == [])

    run(whole(), limit_seconds=600)


def test_an_instance_that_is_live_does_not_drain() -> None:
    async def act(pool: WorkerPool) -> None:
        with pytest.raises(Refusal, match="cannot go from live to draining"):
            await pool.bus.call(DRAIN, Drain(instance="m-t", epoch=1), timeout=5, id="t")
        await parked(pool)
        await pool.finish_loading("t")

    with_live_scale(act)
