"""Short prompts run together: on the target, and at the source that pulls them."""

import asyncio
from collections.abc import Sequence

import pytest

from livescale.services.worker.engine.contract import LayerwiseRun
from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.live.handoff_receive import TOGETHER_SECONDS, HandOffBatch, IncomingHandOff
from livescale.services.worker.scheduling.batch import Batch
from livescale.shared.virtual_time import run
from tests.worker.engine.made_up import LATENCY
from tests.worker.live.kinds import BLOCKS, CLOCK, Kind, Modelled
from tests.worker.live.stage import Stage, stage
from tests.worker.serving import random_prompt, submit


class Noting(ModelledRunner):
    """Notes how many requests each layer is run of, and each step."""

    layers: list[int]
    steps: list[int]

    async def run_layer(self, partials: Sequence[LayerwiseRun]) -> None:
        self.layers.append(len(partials))
        await super().run_layer(partials)

    async def step(self, batch: Batch) -> list[int]:
        self.steps.append(len({piece.request_id for piece in batch.chunks}))
        return await super().step(batch)


def noting(layers: list[int], steps: list[int]) -> Kind:
    """All engines note in the same lists."""

    def make(told: object) -> Noting:
        runner = Noting(1 << 20, 16, LATENCY, 1.0, CLOCK)
        runner.layers, runner.steps = layers, steps
        return runner

    return Modelled(make_runner=make)


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


class Waiting(IncomingHandOff):
    """One that is only told when it may begin."""

    def __init__(self) -> None:
        self.begun: list[float] = []

    def begin(self) -> None:
        self.begun.append(CLOCK.now())


def test_those_of_a_pull_begin_with_the_last_that_comes_or_without_one_that_is_late() -> None:
    async def main() -> None:
        began, pulls = CLOCK.now(), [[Waiting(), Waiting()] for _ in range(2)]
        whole, late = (HandOffBatch(pull) for pull in pulls)
        whole.settled()
        late.settled()
        await asyncio.sleep(0.1)
        assert [one.begun for one in pulls[0]] == [[], []]
        whole.settled()
        await asyncio.sleep(1.0)
        assert [one.begun for one in pulls[0]] == [[pytest.approx(began + 0.1)]] * 2
        assert [one.begun for one in pulls[1]] == [[pytest.approx(began + TOGETHER_SECONDS)]] * 2

    run(main())


def test_one_whose_hand_off_fails_does_not_keep_those_that_came_with_it() -> None:
    layers, steps = list[int](), list[int]()

    async def main() -> None:
        async with stage("s", "t", kind=noting(layers, steps)) as made:
            await made.beside("s", "t", [0, 1])
            await ask(made, 3, rows=24)
            await made.until(lambda: made.count("t", "live_layers") == 3)
            made.faults.messages = 2
            await made.help("s", "t")
            await made.until(lambda: made.count("t", "returned_tasks") == 1)
            made.faults.messages = None
            await made.load("t", list(range(BLOCKS)), "zigzag")
            await made.done()
            assert made.count("s", "pulled_tasks") >= 2

    run(main(), limit_seconds=600)
    assert 2 in steps
