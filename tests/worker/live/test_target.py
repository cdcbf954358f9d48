"""Short prompts run together: on the target, and at the source that pulls them."""

import asyncio

from livescale.shared.virtual_time import run
from tests.worker.live.kinds import BLOCKS, noting
from tests.worker.live.stage import Stage, stage
from tests.worker.serving import random_prompt, submit


async def ask(made: Stage, count: int, rows: int, target: str = "t") -> None:
    for number in range(count):
        await made.client.submit(submit(f"{target}{number}", random_prompt(number, rows), max_tokens=1), target)


def test_short_prompts_run_together_on_the_target_and_then_at_the_source() -> None:
    layers, steps = list[int](), list[int]()

    async def main() -> None:
        async with stage("s", "t", kind=noting(layers, steps)) as made:
            await made.beside("s", "t", [0, 1])
            await ask(made, 4, rows=24)
            await made.until(lambda: made.count("t", "live_layers") == 4)
            await made.help("s", "t")
            await made.until(lambda: made.count("s", "pulled_tasks") == 4)
            assert made.count("s", "pulled_layers") == 4
            await made.load("t", list(range(BLOCKS)), "zigzag")
            await made.done()

    run(main(), limit_seconds=600)
    assert sum(layers) == 4
    assert len(layers) <= 2  # the first may have begun before the others came
    assert steps == [4]


def test_prompts_that_fill_a_batch_run_one_by_one_and_are_pulled_one_by_one() -> None:
    layers, steps = list[int](), list[int]()

    async def main() -> None:
        async with stage("s", "t", kind=noting(layers, steps)) as made:
            await made.beside("s", "t", [0, 1])
            await ask(made, 3, rows=400)
            await made.until(lambda: made.count("t", "live_layers") == 3)
            await made.help("s", "t")
            await made.load("t", list(range(BLOCKS)), "zigzag")
            await made.done()

    run(main(), limit_seconds=600)
    assert set(layers) == {1}
    assert set(steps) == {1}


def test_a_source_never_holds_more_than_one_step_runs_while_another_waits() -> None:
    async def main() -> None:
        async with stage("s", "s2", "t", "t2", kind=noting([], [])) as made:
            for source in ("s", "s2"):
                await made.loaded(source)
            for target in ("t", "t2"):
                await made.load(target, [0, 1], "zigzag")
            await made.until(lambda: {made.state("t"), made.state("t2")} == {"live"})
            for target in ("t", "t2"):
                await ask(made, 4, rows=300, target=target)
            await made.until(lambda: made.count("t", "live_layers") + made.count("t2", "live_layers") == 8)
            await made.help("s", "t", "t2")
            await made.help("s2", "t", "t2")
            held = []
            while made.count("s", "pulled_tasks") + made.count("s2", "pulled_tasks") < 8:
                held.append([len(made.members[source].worker._serving.running()) for source in ("s", "s2")])
                await asyncio.sleep(0.001)
            assert max(map(max, held)) == 1
            await made.load("t", list(range(BLOCKS)), "zigzag")
            await made.load("t2", list(range(BLOCKS)), "zigzag")
            await made.done()
            pulled = sorted(made.count(source, "pulled_tasks") for source in ("s", "s2"))
            assert pulled == [4, 4]

    run(main(), limit_seconds=600)
