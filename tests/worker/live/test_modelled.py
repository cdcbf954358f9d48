"""Modelled engines in a live scale: what changes hands is all that there is, and tokens are right."""

from livescale.shared.simulation.virtual_time import run
from tests.worker.live.engines import BLOCKS, MODELLED
from tests.worker.live.pool import WorkerPool, worker_pool
from tests.worker.requests import random_prompt, submit


async def ask(pool: WorkerPool, count: int) -> None:
    for number in range(count):
        await pool.client.submit(submit(f"r{number}", random_prompt(number, 150), max_tokens=6), "t")


def test_requests_that_change_hands_in_the_middle_of_a_load_end_with_their_tokens() -> None:
    async def main() -> None:
        async with worker_pool("s", "t", kind=MODELLED) as pool:
            await pool.beside("s", "t", [0, 1, 2])
            await ask(pool, 4)
            await pool.until(lambda: pool.count("t", "live_layers") >= 4)
            await pool.help("s", "t")
            await pool.until(lambda: pool.count("s", "pulled_tasks") >= 1)
            await pool.load("t", list(range(BLOCKS)), "zigzag")
            await pool.until(lambda: pool.ready("t") == BLOCKS)
            await pool.serve("t")
            await pool.done()
            assert pool.count("s", "pulled_layers") >= 1

    run(main(), limit_seconds=600)


def test_a_request_whose_kv_is_lost_on_the_way_is_made_again() -> None:
    async def main() -> None:
        async with worker_pool("s", "t", kind=MODELLED) as pool:
            await pool.beside("s", "t", [0, 1, 2])
            await ask(pool, 1)
            await pool.until(lambda: pool.count("t", "live_layers") == 2)
            pool.faults.message_seconds = 0.1
            await pool.help("s", "t")
            await pool.until(lambda: pool.count("s", "pulled_tasks") == 1)
            await pool.kill("t")
            await pool.until(lambda: pool.count("s", "lost_kv") == 1)
            await pool.done()

    run(main(), limit_seconds=600)


def test_what_a_source_pulls_is_there_when_its_own_prompts_end() -> None:
    async def main() -> None:
        async with worker_pool("s", "t", kind=MODELLED) as pool:
            await pool.beside("s", "t", [0, 1])
            await ask(pool, 1)
            await pool.until(lambda: pool.count("t", "live_layers") == 1)
            for number in range(2):
                await pool.client.submit(submit(f"own{number}", random_prompt(number, 400), max_tokens=1), "s")
            await pool.help("s", "t")
            assert pool.count("s", "pulled_tasks") == 0
            await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes[1:]))
            assert pool.count("s", "pulled_tasks") == 1

    run(main(), limit_seconds=600)
