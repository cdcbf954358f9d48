"""When a pipeline is over its requests go on at its workers, each with an even part of them."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest

from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.pipeline.filling import FILL_ROWS
from livescale.services.worker.settings import MIB, WorkerSettings
from livescale.shared.bus.contract import Context, Endpoint, ServiceInfo
from livescale.shared.messages.live import Pull, Pulled, Task, Took
from livescale.shared.messages.message import Ack
from livescale.shared.messages.requests import TokenFrame
from livescale.shared.model.latency import Latency, Work
from livescale.shared.runtime.settings import SwitchKv
from livescale.shared.simulation.virtual_time import run
from livescale.shared.subjects import PULL, TOKENS, TOOK
from tests.worker.live.kinds import BFLOAT16, BLOCKS, CLOCK, FLOAT32, MODELLED, Kind, Modelled
from tests.worker.live.stage import Stage, stage
from tests.worker.pipeline.line import PAIR, ask, form, play, request, say_over, whole

LONG = 100
THREE = (("a", 2), ("b", 4), ("c", BLOCKS))


async def has_tokens(made: Stage, count: int) -> None:
    await made.until(lambda: sum(len(wish.tokens) >= count for wish in made.client.wishes) >= 4)


def lacking(made: Stage, worker: str) -> int:
    """Tokens of prompts that are still to be computed there."""
    scheduler = made.members[worker].worker._serving.scheduler
    assert scheduler is not None
    return sum(one.waiting_tokens for one in scheduler.in_order)


@pytest.mark.parametrize("kind", [MODELLED, pytest.param(BFLOAT16, marks=pytest.mark.slow)])
def test_unfinished_requests_are_spread_evenly_with_the_tokens_they_have(kind: Kind) -> None:
    async def act(made: Stage) -> None:
        await ask(made, 6, tokens=60)
        await whole(made, "a", "b", "c")
        await has_tokens(made, 3)
        await made.serve("a")
        await made.serve("b")
        await made.serve("c")
        await made.until(lambda: made.count("b", "pulled_tasks") + made.count("c", "pulled_tasks") == 4)
        assert min(made.count("b", "pulled_tasks"), made.count("c", "pulled_tasks")) >= 1
        assert all(wish.submissions == 0 for wish in made.client.wishes)

    play(act, THREE, kind=kind)


@pytest.mark.parametrize("kind", [FLOAT32, pytest.param(BFLOAT16, marks=pytest.mark.slow)])
def test_requests_go_on_from_what_was_computed_while_the_pipeline_still_ran(kind: Kind) -> None:
    async def act(made: Stage) -> None:
        await ask(made, 4, tokens=20, prompt=LONG)
        await whole(made, "a", "b")
        await has_tokens(made, 3)
        await made.serve("a")
        await made.serve("b")
        for worker in "ab":
            assert made.count(worker, "pipeline_filled_tokens") >= LONG
            assert made.count(worker, "pipeline_moved_tokens") == 0
            assert lacking(made, worker) <= FILL_ROWS

    play(act, kind=replace(kind, switch_kv="recompute"))


@pytest.mark.parametrize("kind", [FLOAT32, pytest.param(BFLOAT16, marks=pytest.mark.slow), MODELLED])
def test_requests_go_on_from_what_others_sent(kind: Kind) -> None:
    async def act(made: Stage) -> None:
        await ask(made, 4, tokens=40)
        await whole(made, "a", "b", "c")
        await has_tokens(made, 3)
        for worker in "abc":
            await made.serve(worker)
        for worker in "abc":
            assert made.count(worker, "pipeline_moved_tokens") > 0
            assert made.count(worker, "pipeline_filled_tokens") == 0
            assert "moved: move is set" in made.kv_ways[worker]
            assert lacking(made, worker) == 0

    play(act, THREE, kind=replace(kind, switch_kv="move"))


@pytest.mark.parametrize("switch_kv", ["move", "recompute"])
def test_it_may_be_over_in_the_middle_of_prompts(switch_kv: SwitchKv) -> None:
    async def act(made: Stage) -> None:
        await whole(made, "a", "b")
        await ask(made, 4, tokens=4, prompt=400)
        scheduler = made.members["a"].worker._serving.scheduler
        assert scheduler is not None
        await made.until(lambda: any(0 < one.computed < 400 for one in scheduler.placed))
        await made.serve("a")
        await made.serve("b")

    play(act, kind=replace(FLOAT32, kv_bytes=4 * MIB, switch_kv=switch_kv), kv_blocks=128)


@pytest.mark.parametrize("wait", [0.0, 0.004, 0.011, 0.017, 0.05])
def test_it_may_be_over_at_any_time(wait: float) -> None:
    async def act(made: Stage) -> None:
        await whole(made, "a", "b")
        await ask(made, 5, tokens=10)
        await asyncio.sleep(wait)
        await made.serve("a")
        await asyncio.sleep(wait / 2)
        await made.serve("b")

    play(act, (("a", 2), ("b", 3), ("a", 4), ("b", BLOCKS)), kind=replace(FLOAT32, switch_kv="move"))


SLOW = Latency(source="made up", prefill=(10.0, 2.0, 0.0), decode=(10.0, 1.0, 0.0))


def slow(told: WorkerSettings) -> ModelledRunner:
    return ModelledRunner(4 * MIB, told.block_size, SLOW, 1.0, CLOCK)


@asynccontextmanager
async def timed_tokens(made: Stage) -> AsyncIterator[dict[str, list[float]]]:
    """When the tokens of each request came."""
    came: dict[str, list[float]] = defaultdict(list)

    async def follow() -> None:
        async for received in await made.bus.subscribe(TOKENS):
            for row in received.message.rows if isinstance(received.message, TokenFrame) else ():
                came[row.request_id] += [CLOCK.now()] * bool(row.token_ids)

    following = asyncio.create_task(follow())
    yield came
    following.cancel()


def longest_pause(came: dict[str, list[float]], begun: float, over: float = inf) -> float:
    """Of those in this time, in part at least."""
    pairs = (pair for times in came.values() for pair in pairwise(times))
    return max(after - before for before, after in pairs if after > begun and before < over)


@pytest.mark.parametrize(("switch_kv", "prompts"), [("recompute", 1), ("move", 0)])
def test_no_request_pauses_for_longer_than_the_rows_take_that_go_with_a_step(switch_kv: SwitchKv, prompts: int) -> None:
    """Where KV is moved no row goes with any."""

    async def act(made: Stage) -> None:
        async with timed_tokens(made) as came:
            await ask(made, 4, tokens=20, prompt=LONG)
            await whole(made, "a", "b")
            await has_tokens(made, 3)
            begun = CLOCK.now()
            await made.serve("a")
            await made.serve("b")
            await made.until(lambda: all(wish.is_over for wish in made.client.wishes))
        least, most = (SLOW.seconds(Work(prefill_tokens=tokens)) for tokens in (LONG, FILL_ROWS))
        assert least * prompts < longest_pause(came, begun) < (most if prompts else least)

    play(act, kind=Modelled(make_runner=slow, switch_kv=switch_kv))


@pytest.mark.parametrize("switch_kv", ["recompute", "move"])
def test_in_a_pipeline_nobody_pauses_for_the_prompts_of_others(switch_kv: SwitchKv) -> None:
    """They take turns with decodes, and with what is filled, until its leader serves by itself."""

    async def act(made: Stage) -> None:
        async with timed_tokens(made) as came:
            await ask(made, 2, tokens=200, prompt=200)
            await whole(made, "a", "b")
            await made.until(lambda: all(len(wish.tokens) >= 5 for wish in made.client.wishes))
            begun = CLOCK.now()
            await ask(made, 2, tokens=20, prompt=400)
            await asyncio.sleep(0.1)
            await made.serve("a")
            over = CLOCK.now()
            await made.serve("b")
            await made.until(lambda: all(wish.is_over for wish in made.client.wishes))
        pause = longest_pause(came, begun, over)
        filled, others = (SLOW.seconds(Work(prefill_tokens=tokens)) for tokens in (FILL_ROWS, 400))
        assert pause < (filled + 0.05 if switch_kv == "recompute" else 0.05) < others / 2, "of two stages"

    play(act, kind=Modelled(make_runner=slow, switch_kv=switch_kv), kv_blocks=128)


def test_what_nobody_fetches_the_leader_runs() -> None:
    async def act(made: Stage) -> None:
        await ask(made, 5, tokens=40)
        await whole(made, "a")
        await has_tokens(made, 2)
        await made.serve("a")
        await made.until(lambda: all(wish.is_over for wish in made.client.wishes))
        assert made.state("b") == "loading"
        assert all(wish.submissions == 0 for wish in made.client.wishes)

    play(act, kind=MODELLED)


def test_a_worker_that_is_whole_waits_for_the_leader_and_not_for_long() -> None:
    async def act(made: Stage) -> None:
        await ask(made, 3, tokens=400)
        await whole(made, "b")
        await made.serve("b")  # its leader hears nothing of the kind, and loses a stage
        await made.until(lambda: made.state("b") == "serving")
        await made.until(lambda: made.state("a") == "loading")
        await made.until(lambda: any(place == "b" for place in made.client.places.values()))

    play(act, kind=MODELLED)


def test_a_request_that_leaves_or_is_late_while_it_is_kept_ends() -> None:
    async def act(made: Stage) -> None:
        await ask(made, 6, tokens=60)
        await whole(made, "a", "b")
        await has_tokens(made, 2)
        await made.serve("a")
        for wish in made.client.wishes:
            made.client.cancel(wish)
        await made.serve("b")

    play(act, kind=MODELLED)


def test_a_planner_may_end_it_before_anybody_is_whole_and_form_it_again() -> None:
    async def act(made: Stage) -> None:
        await ask(made, 4, tokens=20)
        await has_tokens(made, 1)
        say_over(made)
        await made.until(lambda: {made.state("a"), made.state("b")} == {"loading"})
        await made.until(lambda: made.reports["a"].pipeline is made.reports["b"].pipeline is None)
        await form(made, PAIR, "p2")
        await made.until(lambda: made.state("a") == "live")
        assert made.reports["b"].pipeline == "p2"
        await made.until(lambda: all(wish.is_over for wish in made.client.wishes))
        await whole(made, "a", "b")
        await made.serve("a")
        await made.serve("b")

    play(act, kind=MODELLED)


def test_a_worker_that_was_served_to_before_all_were_there_serves_alone() -> None:
    async def act(made: Stage) -> None:
        await whole(made, "a", "b")
        await made.serve("a")
        await made.serve("b")
        await ask(made, 2)
        await ask(made, 2, "b")

    play(act, kind=MODELLED)


def test_a_leader_that_is_told_twice_to_serve_and_then_drains_finishes_what_it_has() -> None:
    async def act(made: Stage) -> None:
        await ask(made, 6, tokens=60)
        await whole(made, "a", "b")
        await has_tokens(made, 2)
        for _ in range(3):
            await made.serve("a")
        await made.drain("a")
        await made.until(lambda: made.state("a") == "spare")
        assert all(wish.submissions == 0 for wish in made.client.wishes)
        await made.serve("b")

    play(act, kind=MODELLED)


def test_a_leader_that_is_told_again_to_serve_still_keeps_what_is_the_others() -> None:
    async def act(made: Stage) -> None:
        await ask(made, 6, tokens=60)
        await whole(made, "a", "b")
        await has_tokens(made, 2)
        await made.serve("a")
        await made.until(lambda: made.reports["a"].pipeline is None)
        await made.serve("a")
        await made.serve("b")
        await made.until(lambda: made.count("b", "pulled_tasks") >= 2)

    play(act, kind=MODELLED)


def test_what_was_begun_is_fetched_before_the_router_hears_that_it_may_send_more() -> None:
    async def act(made: Stage) -> None:
        await ask(made, 6, tokens=60)
        await whole(made, "a", "b")
        await has_tokens(made, 2)
        await made.serve("a")
        await made.serve("b")
        assert made.count("b", "pulled_tasks") == 3
        await made.until(lambda: made.state("b") == "serving")

    play(act, kind=MODELLED)


@pytest.mark.parametrize("filled", [5, 100])
def test_what_cannot_be_filled_is_declined(filled: int) -> None:
    heard: list[str | None] = []

    async def main() -> None:
        async with stage("s", kind=MODELLED) as made:
            await made.loaded("s")

            async def pull(command: Pull, context: Context) -> Pulled:
                task = Task(request=request(1, prompt=100), layers=0, filled=filled)
                return Pulled(over=True) if heard else Pulled(tasks=[task])

            async def took(command: Took, context: Context) -> Ack:
                heard.append(command.declined)
                return Ack()

            endpoints = [Endpoint(PULL, pull, {"id": "leader"}), Endpoint(TOOK, took, {"id": "leader"})]
            await made.bus.serve(ServiceInfo("worker", "leader", "says what is not so"), endpoints)
            await made.help("s", "leader")
            await made.until(lambda: made.reports["s"].helping == [] and bool(heard))
            assert heard == [f"400: filled: {filled} of 100 positions"]

    run(main(), limit_seconds=60)
