"""Which instance helps which target: several sources, several targets, plans one after the other, and their end."""

import pytest

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.live import Pull, Took
from livescale.shared.subjects import PULL, TOOK
from tests.worker.live.live_scale import parked, with_live_scale
from tests.worker.live.pool import WorkerPool
from tests.worker.requests import random_prompt, submit


def test_each_of_two_sources_takes_from_each_of_two_targets() -> None:
    async def act(pool: WorkerPool) -> None:
        await pool.start("t2")
        await pool.load("t2", [0, 1], "zigzag")
        await pool.until(lambda: pool.state("t2") == "live")
        for number in range(6):
            await pool.client.submit(submit(f"b{number}", random_prompt(number, 100), max_tokens=3), "t2")
        await parked(pool, 4)
        await pool.help("s", "t", "t2")
        await pool.help("s2", "t", "t2")
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert {(one.previous, one.worker) for one in pool.client.moves} == {
            *(("t", "s"), ("t", "s2"), ("t2", "s"), ("t2", "s2"))
        }
        assert len(pool.client.moves) == 10

    with_live_scale(act, "s2")


def test_targets_of_two_plans_are_helped_until_each_plan_says_otherwise() -> None:
    async def act(pool: WorkerPool) -> None:
        await pool.start("t2")
        await pool.load("t2", [0, 1], "zigzag")
        await pool.until(lambda: pool.state("t2") == "live")
        await pool.help("s", "t", plan="first")
        await pool.help("s", "t2", plan="second")
        await pool.until(lambda: pool.reports["s"].helping == ["t", "t2"])
        for target in ("t", "t2"):
            await pool.client.submit(submit(target, random_prompt(1, 100), max_tokens=3), target)
        await pool.until(lambda: pool.count("s", "pulled_tasks") == 2)
        await pool.help("s", plan="first")
        await pool.until(lambda: pool.reports["s"].helping == ["t2"])
        await pool.client.submit(submit("again", random_prompt(2, 100), max_tokens=3), "t2")
        await pool.until(lambda: pool.count("s", "pulled_tasks") == 3)

    with_live_scale(act)


def test_a_target_that_is_whole_empties_its_queue_with_its_source_and_then_both_serve_alone() -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool, 4)
        await pool.help("s", "t")
        await pool.finish_loading("t")
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        await pool.until(lambda: pool.reports["s"].helping == [])
        pulled = pool.count("s", "pulled_tasks")
        assert 1 <= pulled < 4
        for number in range(3):
            await pool.client.submit(submit(f"later{number}", random_prompt(number, 100), max_tokens=4), "t")
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert pool.count("s", "pulled_tasks") == pulled

    with_live_scale(act)


@pytest.mark.parametrize(("field", "value"), [("version", "another"), ("block_tokens", 32)])
def test_a_source_with_other_parameters_or_other_blocks_of_kv_gets_nothing(field: str, value: str | int) -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool)
        right = {"worker": "x", "address": b"x", "ticket": 1, "version": pool.kind.manifest.version, "block_tokens": 16}
        with pytest.raises(Refusal, match="KV here has blocks of 16 tokens"):
            await pool.bus.call(PULL, Pull(**{**right, field: value}), timeout=5, id="t")  # type: ignore[arg-type]
        await pool.finish_loading("t")

    with_live_scale(act)


def test_only_the_source_can_say_that_it_took_a_request() -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool)
        pool.faults.message_seconds = 1.0
        await pool.help("s", "t")
        await pool.until(lambda: pool.reports["s"].helping == ["t"])
        for worker, ticket, request in (("x", 0, "r0"), ("s", 1 << 20, "r0"), ("s", 0, "another")):
            took = Took(worker=worker, ticket=ticket, request_id=request)
            with pytest.raises(Refusal, match="is not on its way to"):
                await pool.bus.call(TOOK, took, timeout=5, id="t")
        await pool.until(lambda: pool.count("s", "pulled_tasks") == 1)

    with_live_scale(act)
