"""Short prompts run together: on the target, and at the source that pulls them."""

import asyncio

from livescale.shared.simulation.virtual_time import run
from tests.worker.live.engines import BLOCKS, noting
from tests.worker.live.pool import WorkerPool, worker_pool
from tests.worker.requests import random_prompt, submit


async def ask(pool: WorkerPool, count: int, rows: int, target: str = "t") -> None:
    for number in range(count):
        await pool.client.submit(submit(f"{target}{number}", random_prompt(number, rows), max_tokens=1), target)


def test_short_prompts_run_together_on_the_target_and_then_at_the_source() -> None:
    layers, steps = list[int](), list[int]()

    async def main() -> None:
        async with worker_pool("s", "t", kind=noting(layers, steps)) as pool:
            await pool.beside("s", "t", [0, 1])
            await ask(pool, 4, rows=24)
            await pool.until(lambda: pool.count("t", "live_layers") == 4)
            await pool.help("s", "t")
            await pool.until(lambda: pool.count("s", "pulled_tasks") == 4)
            assert pool.count("s", "pulled_layers") == 4
            await pool.load("t", list(range(BLOCKS)), "zigzag")
            await pool.done()

    run(main(), limit_seconds=600)
    assert sum(layers) == 4
    assert len(layers) <= 2  # the first may have begun before the others came
    assert steps == [4]


def test_prompts_that_fill_a_batch_run_one_by_one_and_are_pulled_one_by_one() -> None:
    layers, steps = list[int](), list[int]()

    async def main() -> None:
        async with worker_pool("s", "t", kind=noting(layers, steps)) as pool:
            await pool.beside("s", "t", [0, 1])
            await ask(pool, 3, rows=400)
            await pool.until(lambda: pool.count("t", "live_layers") == 3)
            await pool.help("s", "t")
            await pool.load("t", list(range(BLOCKS)), "zigzag")
            await pool.done()

    run(main(), limit_seconds=600)
    assert set(layers) == {1}
    assert set(steps) == {1}


def test_a_source_never_holds_more_than_one_step_runs_while_another_waits() -> None:
    async def main() -> None:
        async with worker_pool("s", "s2", "t", "t2", kind=noting([], [])) as pool:
            for source in ("s", "s2"):
                await pool.loaded(source)
            for target in ("t", "t2"):
                await pool.load(target, [0, 1], "zigzag")
            await pool.until(lambda: {pool.state("t"), pool.state("t2")} == {"live"})
            for target in ("t", "t2"):
                await ask(pool, 4, rows=300, target=target)
            await pool.until(lambda: pool.count("t", "live_layers") + pool.count("t2", "live_layers") == 8)
            await pool.help("s", "t", "t2")
            await pool.help("s2", "t", "t2")
            held = []
            while pool.count("s", "pulled_tasks") + pool.count("s2", "pulled_tasks") < 8:
                held.append([len(pool.members[source].worker._serving.running()) for source in ("s", "s2")])
                await asyncio.sleep(0.001)
            assert max(map(max, held)) == 1
            await pool.load("t", list(range(BLOCKS)), "zigzag")
            await pool.load("t2", list(range(BLOCKS)), "zigzag")
            await pool.done()
            pulled = sorted(pool.count(source, "pulled_tasks") for source in ("s", "s2"))
            assert pulled == [4, 4]

    run(main(), limit_seconds=600)
