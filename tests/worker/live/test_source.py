"""Who helps whom: several sources, several targets, plans one after the other, and the end of it."""

import pytest

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.live import Pull, Took
from livescale.shared.subjects import PULL, TOOK
from tests.worker.live.scenes import parked, play
from tests.worker.live.stage import Stage
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
