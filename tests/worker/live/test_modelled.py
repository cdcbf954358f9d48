"""Modelled engines in a live scale: what changes hands is all that there is, and tokens are right."""

from livescale.shared.simulation.virtual_time import run
from tests.worker.live.kinds import BLOCKS, MODELLED
from tests.worker.live.stage import Stage, stage
from tests.worker.serving import random_prompt, submit


async def ask(made: Stage, count: int) -> None:
    for number in range(count):
        await made.client.submit(submit(f"r{number}", random_prompt(number, 150), max_tokens=6), "t")


def test_requests_that_change_hands_in_the_middle_of_a_load_end_with_their_tokens() -> None:
    async def main() -> None:
        async with stage("s", "t", kind=MODELLED) as made:
            await made.beside("s", "t", [0, 1, 2])
            await ask(made, 4)
            await made.until(lambda: made.count("t", "live_layers") >= 4)
            await made.help("s", "t")
            await made.until(lambda: made.count("s", "pulled_tasks") >= 1)
            await made.load("t", list(range(BLOCKS)), "zigzag")
            await made.until(lambda: made.ready("t") == BLOCKS)
            await made.serve("t")
            await made.done()
            assert made.count("s", "pulled_layers") >= 1

    run(main(), limit_seconds=600)


def test_a_request_whose_kv_is_lost_on_the_way_is_made_again() -> None:
    async def main() -> None:
        async with stage("s", "t", kind=MODELLED) as made:
            await made.beside("s", "t", [0, 1, 2])
            await ask(made, 1)
            await made.until(lambda: made.count("t", "live_layers") == 2)
            made.faults.message_seconds = 0.1
            await made.help("s", "t")
            await made.until(lambda: made.count("s", "pulled_tasks") == 1)
            await made.kill("t")
            await made.until(lambda: made.count("s", "lost_kv") == 1)
            await made.done()

    run(main(), limit_seconds=600)


def test_what_a_source_pulls_is_there_when_its_own_prompts_end() -> None:
    async def main() -> None:
        async with stage("s", "t", kind=MODELLED) as made:
            await made.beside("s", "t", [0, 1])
            await ask(made, 1)
            await made.until(lambda: made.count("t", "live_layers") == 1)
            for number in range(2):
                await made.client.submit(submit(f"own{number}", random_prompt(number, 400), max_tokens=1), "s")
            await made.help("s", "t")
            assert made.count("s", "pulled_tasks") == 0
            await made.until(lambda: all(wish.is_over for wish in made.client.wishes[1:]))
            assert made.count("s", "pulled_tasks") == 1

    run(main(), limit_seconds=600)
