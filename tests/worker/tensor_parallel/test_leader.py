"""The rank that leads an instance has a layer run once all ranks have it."""

import asyncio

from livescale.shared.virtual_time import run
from tests.worker.live.kinds import Kind
from tests.worker.live.stage import stage
from tests.worker.serving import random_prompt, submit
from tests.worker.tensor_parallel.stage import TARGET, rank_stage, wanted


async def test_a_layer_is_run_once_the_slowest_rank_has_it() -> None:
    async with rank_stage() as stage:
        await stage.have(TARGET, stage.blocks - 1, 1)
        await stage.made.until(lambda: stage.made.state("t-0") == "live")
        assert stage.made.state("t-1") == "loading"
        await stage.made.admit("t-0", wanted(1))
        for layers in (1, 2):
            await stage.have(TARGET, stage.blocks - 1, layers + 1)
            await stage.ran(layers)
            assert stage.count("t-0", "live_layers") == layers


def test_a_target_that_is_told_to_serve_too_early_still_waits_for_the_slowest_rank() -> None:
    async def main() -> None:
        async with stage("t", kind=Kind(ranks=2)) as made:
            await made.load("t", [0, 1], "zigzag")
            await made.load("t", [2], "zigzag", ranks=[0])
            await made.until(lambda: made.state("t") == "live")
            await made.serve("t")  # which is refused
            await made.client.submit(submit("r", random_prompt(1, 90), max_tokens=3), "t")
            await asyncio.sleep(1.0)
            assert made.count("t", "live_layers") == 1
            await made.finish_loading("t")
            await made.done()

    run(main(), limit_seconds=600)
