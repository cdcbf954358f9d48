"""Who helps whom: several sources, several targets, plans one after the other, and the end of it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.live import Pull, Took
from livescale.shared.simulation.virtual_time import run
from livescale.shared.subjects import PULL, TOOK
from tests.worker.live.scenes import parked, play
from tests.worker.live.stage import Stage, stage
from tests.worker.serving import random_prompt, submit


def test_each_of_two_sources_takes_from_each_of_two_targets() -> None:
    async def act(made: Stage) -> None:
        await made.start("t2")
        await made.load("t2", [0, 1], "zigzag")
        await made.until(lambda: made.state("t2") == "live")
        for number in range(6):
            await made.client.submit(submit(f"b{number}", random_prompt(number, 100), max_tokens=3), "t2")
        await parked(made, 4)
        await made.help("s", "t", "t2")
        await made.help("s2", "t", "t2")
        await made.until(lambda: all(wish.is_over for wish in made.client.wishes))
        assert {(one.previous, one.worker) for one in made.client.moves} == {
            *(("t", "s"), ("t", "s2"), ("t2", "s"), ("t2", "s2"))
        }
        assert len(made.client.moves) == 10

    play(act, "s2")


def test_targets_of_two_plans_are_helped_until_each_plan_says_otherwise() -> None:
    async def act(made: Stage) -> None:
        await made.start("t2")
        await made.load("t2", [0, 1], "zigzag")
        await made.until(lambda: made.state("t2") == "live")
        await made.help("s", "t", plan="first")
        await made.help("s", "t2", plan="second")
        await made.until(lambda: made.reports["s"].helping == ["t", "t2"])
        for target in ("t", "t2"):
            await made.client.submit(submit(target, random_prompt(1, 100), max_tokens=3), target)
        await made.until(lambda: made.count("s", "pulled_tasks") == 2)
        await made.help("s", plan="first")
        await made.until(lambda: made.reports["s"].helping == ["t2"])
        await made.client.submit(submit("again", random_prompt(2, 100), max_tokens=3), "t2")
        await made.until(lambda: made.count("s", "pulled_tasks") == 3)

    play(act)


def test_a_target_that_is_whole_empties_its_queue_with_its_source_and_then_both_serve_alone() -> None:
    async def act(made: Stage) -> None:
        await parked(made, 4)
        await made.help("s", "t")
        await made.finish_loading("t")
        await made.until(lambda: all(wish.is_over for wish in made.client.wishes))
        await made.until(lambda: made.reports["s"].helping == [])
        pulled = made.count("s", "pulled_tasks")
        assert 1 <= pulled < 4
        for number in range(3):
            await made.client.submit(submit(f"later{number}", random_prompt(number, 100), max_tokens=4), "t")
        await made.until(lambda: all(wish.is_over for wish in made.client.wishes))
        assert made.count("s", "pulled_tasks") == pulled

    play(act)


@pytest.mark.parametrize(("field", "value"), [("version", "another"), ("block_tokens", 32)])
def test_who_has_other_parameters_or_other_blocks_of_kv_gets_nothing(field: str, value: str | int) -> None:
    async def act(made: Stage) -> None:
        await parked(made)
        right = {"worker": "x", "address": b"x", "ticket": 1, "version": made.kind.manifest.version, "block_tokens": 16}
        with pytest.raises(Refusal, match="KV here has blocks of 16 tokens"):
            await made.bus.call(PULL, Pull(**{**right, field: value}), timeout=5, id="t")  # type: ignore[arg-type]
        await made.finish_loading("t")

    play(act)


def test_nobody_else_can_say_that_a_source_took_a_request() -> None:
    async def act(made: Stage) -> None:
        await parked(made)
        made.faults.message_seconds = 1.0
        await made.help("s", "t")
        await made.until(lambda: made.reports["s"].helping == ["t"])
        for worker, ticket, request in (("x", 0, "r0"), ("s", 1 << 20, "r0"), ("s", 0, "another")):
            took = Took(worker=worker, ticket=ticket, request_id=request)
            with pytest.raises(Refusal, match="is not on its way to"):
                await made.bus.call(TOOK, took, timeout=5, id="t")
        await made.until(lambda: made.count("s", "pulled_tasks") == 1)

    play(act)


def test_a_pull_that_waits_for_a_target_to_go_live_is_void_once_the_source_has_requests_of_its_own() -> None:
    async def main() -> None:
        async with stage("s", "t") as made:
            await made.loaded("s")
            await made.load("t", [1], "zigzag")
            await made.help("s", "t")
            await asyncio.sleep(0.1)
            for number in range(4):
                await made.client.submit(submit(f"own{number}", random_prompt(number, 50), max_tokens=60), "s")
            await asyncio.sleep(0.1)
            await made.load("t", [0], "zigzag")
            await made.until(lambda: made.state("t") == "live")
            made.act(made.client.submit(submit("other", random_prompt(9, 300), max_tokens=1), "t"))
            await made.until(lambda: made.count("s", "pulled_tasks") == 1)
            assert made.count("s", "pulled_layers") == 1
            await made.finish_loading("t")
            await made.done()

    run(main(), limit_seconds=600)


def waiting_for_the_first_layer(act: Callable[[Stage], Awaitable[None]]) -> None:
    """A source that serves, and a request at a target that has no more than its embedding."""

    async def main() -> None:
        async with stage("s", "t") as made:
            await made.beside("s", "t", [0])
            await made.client.submit(submit("r", random_prompt(0, 90), max_tokens=8), "t")
            await act(made)
            await made.done()

    run(main(), limit_seconds=600)


def test_what_waits_for_the_first_layer_is_taken_whole_by_a_source_that_has_nothing_to_do() -> None:
    async def act(made: Stage) -> None:
        await made.help("s", "t")
        await made.until(lambda: made.count("s", "pulled_tasks") == 1)
        assert made.count("s", "pulled_layers") == 0
        await made.finish_loading("t")

    waiting_for_the_first_layer(act)


def test_what_waits_for_the_first_layer_is_given_back_by_a_target_that_gives_up() -> None:
    async def act(made: Stage) -> None:
        await made.abort("t")
        await made.until(lambda: made.state("t") == "spare")

    waiting_for_the_first_layer(act)


def test_layers_that_came_before_the_first_are_run_after_it() -> None:
    async def main() -> None:
        async with stage("t") as made:
            await made.load("t", [0, 2], "zigzag")
            await made.until(lambda: made.ready("t") == 2)
            assert made.state("t") == "live"
            await made.client.submit(submit("r", random_prompt(0, 90), max_tokens=1), "t")
            await asyncio.sleep(1.0)
            assert made.reports["t"].live_waiting == 1
            assert made.count("t", "live_layers") == 0
            await made.load("t", [1], "zigzag")
            await made.until(lambda: made.count("t", "live_layers") == 2)
            await made.finish_loading("t")
            await made.done()

    run(main(), limit_seconds=600)
