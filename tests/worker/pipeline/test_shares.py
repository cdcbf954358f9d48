"""When a pipeline is over its requests go on at its workers, each with an even part of them."""

import asyncio
from dataclasses import replace

import pytest

from livescale.services.worker.pipeline.filling import FILL_ROWS
from livescale.services.worker.settings import MIB
from livescale.shared.bus.contract import Ack, Context, Endpoint, ServiceInfo
from livescale.shared.messages.live import Pull, Pulled, Task, Took
from livescale.shared.runtime.settings import SwitchKv
from livescale.shared.simulation.virtual_time import run
from livescale.shared.subjects import PULL, TOOK
from tests.worker.live.engines import BFLOAT16, BLOCKS, FLOAT32, MODELLED, EngineKind
from tests.worker.live.pool import WorkerPool, worker_pool
from tests.worker.pipeline.pipelines import PAIR, ask, form, has_tokens, request, say_over, whole, with_pipeline

LONG = 100
THREE = (("a", 2), ("b", 4), ("c", BLOCKS))


def lacking(pool: WorkerPool, worker: str) -> int:
    """Return the tokens of prompts that are still to be computed there."""
    scheduler = pool.members[worker].worker._serving.scheduler
    assert scheduler is not None
    return sum(one.waiting_tokens for one in scheduler.in_order)


@pytest.mark.parametrize("kind", [MODELLED, pytest.param(BFLOAT16, marks=pytest.mark.slow)])
def test_unfinished_requests_are_spread_evenly_with_the_tokens_they_have(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 6, tokens=60)
        await whole(pool, "a", "b", "c")
        await has_tokens(pool, 3)
        await pool.serve("a")
        await pool.serve("b")
        await pool.serve("c")
        await pool.until(lambda: pool.count("b", "pulled_tasks") + pool.count("c", "pulled_tasks") == 4)
        assert min(pool.count("b", "pulled_tasks"), pool.count("c", "pulled_tasks")) >= 1
        assert all(wish.submissions == 0 for wish in pool.client.wishes)

    with_pipeline(act, THREE, kind=kind)


@pytest.mark.parametrize("kind", [FLOAT32, pytest.param(BFLOAT16, marks=pytest.mark.slow)])
def test_requests_go_on_from_what_was_computed_while_the_pipeline_still_ran(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 4, tokens=20, prompt=LONG)
        await whole(pool, "a", "b")
        await has_tokens(pool, 3)
        await pool.serve("a")
        await pool.serve("b")
        for worker in "ab":
            assert pool.count(worker, "pipeline_filled_tokens") >= LONG
            assert pool.count(worker, "pipeline_moved_tokens") == 0
            assert lacking(pool, worker) <= FILL_ROWS

    with_pipeline(act, kind=replace(kind, switch_kv="recompute"))


@pytest.mark.parametrize("kind", [FLOAT32, pytest.param(BFLOAT16, marks=pytest.mark.slow), MODELLED])
def test_requests_go_on_from_what_others_sent(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 4, tokens=40)
        await whole(pool, "a", "b", "c")
        await has_tokens(pool, 3)
        for worker in "abc":
            await pool.serve(worker)
        for worker in "abc":
            assert pool.count(worker, "pipeline_moved_tokens") > 0
            assert pool.count(worker, "pipeline_filled_tokens") == 0
            assert "moved: move is set" in pool.kv_ways[worker]
            assert lacking(pool, worker) == 0

    with_pipeline(act, THREE, kind=replace(kind, switch_kv="move"))


@pytest.mark.parametrize("switch_kv", ["move", "recompute"])
def test_it_may_be_over_in_the_middle_of_prompts(switch_kv: SwitchKv) -> None:
    async def act(pool: WorkerPool) -> None:
        await whole(pool, "a", "b")
        await ask(pool, 4, tokens=4, prompt=400)
        scheduler = pool.members["a"].worker._serving.scheduler
        assert scheduler is not None
        await pool.until(lambda: any(0 < one.computed < 400 for one in scheduler.placed))
        await pool.serve("a")
        await pool.serve("b")

    with_pipeline(act, kind=replace(FLOAT32, kv_bytes=4 * MIB, switch_kv=switch_kv), kv_blocks=128)


@pytest.mark.parametrize("wait", [0.0, 0.004, 0.011, 0.017, 0.05])
def test_it_may_be_over_at_any_time(wait: float) -> None:
    async def act(pool: WorkerPool) -> None:
        await whole(pool, "a", "b")
        await ask(pool, 5, tokens=10)
        await asyncio.sleep(wait)
        await pool.serve("a")
        await asyncio.sleep(wait / 2)
        await pool.serve("b")

    with_pipeline(act, (("a", 2), ("b", 3), ("a", 4), ("b", BLOCKS)), kind=replace(FLOAT32, switch_kv="move"))


def test_the_leader_runs_requests_that_were_not_fetched() -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 5, tokens=40)
        await whole(pool, "a")
        await has_tokens(pool, 2)
        await pool.serve("a")
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert pool.state("b") == "loading"
        assert all(wish.submissions == 0 for wish in pool.client.wishes)

    with_pipeline(act, kind=MODELLED)


def test_a_worker_that_is_whole_waits_for_the_leader_and_not_for_long() -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 3, tokens=400)
        await whole(pool, "b")
        await pool.serve("b")  # its leader hears nothing of the kind, and loses a stage
        await pool.until(lambda: pool.state("b") == "serving")
        await pool.until(lambda: pool.state("a") == "loading")
        await pool.until(lambda: any(place == "b" for place in pool.client.places.values()))

    with_pipeline(act, kind=MODELLED)


def test_a_request_that_leaves_or_is_late_while_it_is_kept_ends() -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 6, tokens=60)
        await whole(pool, "a", "b")
        await has_tokens(pool, 2)
        await pool.serve("a")
        for wish in pool.client.wishes:
            pool.client.cancel(wish)
        await pool.serve("b")

    with_pipeline(act, kind=MODELLED)


def test_a_planner_may_end_it_before_anybody_is_whole_and_form_it_again() -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 4, tokens=20)
        await has_tokens(pool, 1)
        say_over(pool)
        await pool.until(lambda: {pool.state("a"), pool.state("b")} == {"loading"})
        await pool.until(lambda: pool.reports["a"].pipeline is pool.reports["b"].pipeline is None)
        await form(pool, PAIR, "p2")
        await pool.until(lambda: pool.state("a") == "live")
        assert pool.reports["b"].pipeline == "p2"
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        await whole(pool, "a", "b")
        await pool.serve("a")
        await pool.serve("b")

    with_pipeline(act, kind=MODELLED)


def test_a_worker_that_was_served_to_before_all_were_there_serves_alone() -> None:
    async def act(pool: WorkerPool) -> None:
        await whole(pool, "a", "b")
        await pool.serve("a")
        await pool.serve("b")
        await ask(pool, 2)
        await ask(pool, 2, "b")

    with_pipeline(act, kind=MODELLED)


def test_a_leader_that_is_told_twice_to_serve_and_then_drains_finishes_what_it_has() -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 6, tokens=60)
        await whole(pool, "a", "b")
        await has_tokens(pool, 2)
        for _ in range(3):
            await pool.serve("a")
        await pool.drain("a")
        await pool.until(lambda: pool.state("a") == "spare")
        assert all(wish.submissions == 0 for wish in pool.client.wishes)
        await pool.serve("b")

    with_pipeline(act, kind=MODELLED)


def test_a_leader_that_is_told_again_to_serve_still_keeps_what_is_the_others() -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 6, tokens=60)
        await whole(pool, "a", "b")
        await has_tokens(pool, 2)
        await pool.serve("a")
        await pool.until(lambda: pool.reports["a"].pipeline is None)
        await pool.serve("a")
        await pool.serve("b")
        await pool.until(lambda: pool.count("b", "pulled_tasks") >= 2)

    with_pipeline(act, kind=MODELLED)


def test_what_was_begun_is_fetched_before_the_router_hears_that_it_may_send_more() -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 6, tokens=60)
        await whole(pool, "a", "b")
        await has_tokens(pool, 2)
        await pool.serve("a")
        await pool.serve("b")
        assert pool.count("b", "pulled_tasks") == 3
        await pool.until(lambda: pool.state("b") == "serving")

    with_pipeline(act, kind=MODELLED)


@pytest.mark.parametrize("filled", [5, 100])
def test_what_cannot_be_filled_is_declined(filled: int) -> None:
    heard: list[str | None] = []

    async def main() -> None:
        async with worker_pool("s", kind=MODELLED) as pool:
            await pool.loaded("s")

            async def pull(command: Pull, context: Context) -> Pulled:
                task = Task(request=request(1, prompt=100), layers=0, filled=filled)
                return Pulled(over=True) if heard else Pulled(tasks=[task])

            async def took(command: Took, context: Context) -> Ack:
                heard.append(command.declined)
                return Ack()

            endpoints = [Endpoint(PULL, pull, {"id": "leader"}), Endpoint(TOOK, took, {"id": "leader"})]
            await pool.bus.serve(ServiceInfo("worker", "leader", "says what is not so"), endpoints)
            await pool.help("s", "leader")
            await pool.until(lambda: pool.reports["s"].helping == [] and bool(heard))
            assert heard == [f"400: filled: {filled} of 100 positions"]

    run(main(), limit_seconds=60)
