"""The rank that leads an instance has a layer run once all ranks have it."""

import asyncio

from livescale.shared.simulation.virtual_time import run
from tests.worker.live.engines import EngineKind
from tests.worker.live.pool import worker_pool
from tests.worker.requests import random_prompt, submit
from tests.worker.tensor_parallel.ranked_workers import TARGET, ranked_workers, wanted


async def test_a_layer_is_run_once_the_slowest_rank_has_it() -> None:
    async with ranked_workers() as ranked:
        await ranked.have(TARGET, ranked.blocks - 1, 1)
        await ranked.fleet.until(lambda: ranked.fleet.state("t-0") == "live")
        assert ranked.fleet.state("t-1") == "loading"
        await ranked.fleet.admit("t-0", wanted(1))
        for layers in (1, 2):
            await ranked.have(TARGET, ranked.blocks - 1, layers + 1)
            await ranked.ran(layers)
            assert ranked.count("t-0", "live_layers") == layers


def test_a_target_that_is_told_to_serve_too_early_still_waits_for_the_slowest_rank() -> None:
    async def main() -> None:
        async with worker_pool("t", kind=EngineKind(ranks=2)) as pool:
            await pool.load("t", [0, 1], "zigzag")
            await pool.load("t", [2], "zigzag", ranks=[0])
            await pool.until(lambda: pool.state("t") == "live")
            await pool.serve("t")  # which is refused
            await pool.client.submit(submit("r", random_prompt(1, 90), max_tokens=3), "t")
            await asyncio.sleep(1.0)
            assert pool.count("t", "live_layers") == 1
            await pool.finish_loading("t")
            await pool.done()

    run(main(), limit_seconds=600)
