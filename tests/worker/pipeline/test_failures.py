"""A worker dies, leaves or gives up while a pipeline runs: every request goes on, and nothing of the pipeline is
left."""

import asyncio
from contextlib import suppress

import pytest

from livescale.shared.bus.contract import BusError
from livescale.shared.messages.membership import Stale
from livescale.shared.runtime.settings import SwitchKv
from livescale.shared.simulation.virtual_time import run
from livescale.shared.subjects import STALE
from tests.worker.live.engines import BFLOAT16, CLOCK, FLOAT32, MODELLED, EngineKind
from tests.worker.live.pool import WorkerPool, worker_pool
from tests.worker.pipeline.pipelines import THREE, form, loaded, nothing_left, request, running, say_over, whole


@pytest.mark.parametrize("who", ["a", "b", "c"])
def test_a_worker_that_dies(who: str) -> None:
    async def act(pool: WorkerPool) -> None:
        await pool.kill(who)
        await pool.until(lambda: all(pool.state(one) != "live" for one in pool.members))

    running(act)


@pytest.mark.parametrize("who", [("a",), ("b",), ("c",), ("a", "b", "c", "other")])
def test_workers_that_are_stopped_and_go_on_run_it_further(who: tuple[str, ...]) -> None:
    """The pipeline is not given up for a pause, neither of one worker nor of all."""

    async def act(pool: WorkerPool) -> None:
        await pool.freeze(2.0, *who)
        assert [pool.reports[one].pipeline for one in ("a", "b", "c")] == ["p1"] * 3
        await pool.until(lambda: all(len(wish.tokens) >= 10 for wish in pool.client.wishes[:3]))
        assert [pool.reports[one].pipeline for one in ("a", "b", "c")] == ["p1"] * 3
        say_over(pool, THREE)

    running(act)


@pytest.mark.parametrize("who", ["a", "b", "c"])
def test_a_worker_whose_load_is_aborted(who: str) -> None:
    async def act(pool: WorkerPool) -> None:
        await pool.abort(who)
        assert pool.state(who) in ("spare", "loading", "live")
        await pool.until(lambda: pool.state(who) == "spare")

    running(act)


@pytest.mark.parametrize("who", ["a", "b", "c"])
def test_a_worker_that_was_declared_dead_forgets_everything(who: str) -> None:
    async def act(pool: WorkerPool) -> None:
        pool.bus.publish(STALE, Stale(id=who, epoch=1), id=who)
        await pool.until(lambda: pool.state(who) == "spare")
        pool.client.lost_at(who)

    running(act)


def test_a_worker_that_was_declared_dead_while_its_pipeline_is_formed() -> None:
    for turns in range(8):

        async def main(turns: int = turns) -> None:
            async with worker_pool("a", "b", "c", kind=MODELLED) as pool:
                await loaded(pool, THREE)
                forming = asyncio.create_task(form(pool, THREE))
                await asyncio.sleep(0.0005 * turns)
                pool.bus.publish(STALE, Stale(id="a", epoch=1), id="a")
                with suppress(BusError):
                    await forming
                await pool.until(lambda: pool.state("a") == "spare")
                say_over(pool, THREE)
                await nothing_left(pool)

        run(main(), limit_seconds=600)


def test_a_request_whose_deadline_comes_while_a_stage_is_silent_ends_then() -> None:
    async def act(pool: WorkerPool) -> None:
        pool.members["b"].bus.hold()
        begun = CLOCK.now()
        await pool.client.submit(request(99, deadline=CLOCK.wall() + 0.5), "a")
        await pool.until(lambda: pool.client.wishes[-1].is_over)
        assert CLOCK.now() - begun < 1.0
        assert pool.client.wishes.pop().ends == ["deadline"]
        pool.members["b"].bus.release()
        say_over(pool, THREE)

    running(act)


def test_a_leader_that_is_whole_goes_on_by_itself_when_a_stage_is_lost() -> None:
    async def act(pool: WorkerPool) -> None:
        await whole(pool, "a")
        await pool.serve("a")
        await pool.kill("b")
        await pool.until(lambda: pool.state("a") == "serving")

    running(act)


@pytest.mark.parametrize("who", ["a", "b", "c"])
@pytest.mark.parametrize(("way", "tokens"), [("recompute", "filled_tokens"), ("move", "moved_tokens")])
def test_a_worker_that_dies_while_each_gets_what_is_to_be_its_own(way: SwitchKv, tokens: str, who: str) -> None:
    async def act(pool: WorkerPool) -> None:
        # More than goes with one step is to be the leader's: all begin to get their own.
        await pool.until(lambda: all(len(wish.tokens) >= 8 for wish in pool.client.wishes[:4]))
        await whole(pool, "a", "b", "c")
        pool.act(pool.serve("a"))
        await pool.until(lambda: pool.count("c", f"pipeline_{tokens}") > 0)
        assert pool.state("a") == "live"
        await pool.kill(who)
        for worker in sorted({"a", "b", "c"} - {who}):
            await pool.serve(worker)

    running(act, way)


@pytest.mark.parametrize("kind", [MODELLED, FLOAT32, pytest.param(BFLOAT16, marks=pytest.mark.slow)])
def test_kv_that_comes_damaged_is_computed_again(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        await whole(pool, "a", "b", "c")
        pool.faults.damaged = 1  # the first part that is moved
        for worker in "abc":
            await pool.serve(worker)
        assert sum(pool.count(worker, "pipeline_lost_kv") for worker in "abc") == 1
        assert pool.count("a", "broken_pipelines") == 0

    running(act, "move", kind)


@pytest.mark.parametrize("way", ["abort b", "break", "hold c", "cancel"])
def test_what_goes_wrong_while_kv_is_moved(way: str) -> None:
    async def act(pool: WorkerPool) -> None:
        await whole(pool, "a", "b", "c")
        pool.act(pool.serve("a"))
        await pool.until(lambda: pool.count("c", "pipeline_moved_tokens") > 0)
        match way:
            case "abort b":
                await pool.abort("b")
            case "break":
                pool.faults.messages = 2
                await pool.until(lambda: pool.faults.messages == 0)
                pool.faults.messages = None
            case "hold c":
                pool.members["c"].bus.hold()
                await pool.until(lambda: pool.state("a") == "serving")
                pool.members["c"].bus.release()
            case "cancel":
                for wish in pool.client.wishes[1:]:
                    pool.client.cancel(wish)
        for worker in sorted(pool.members.keys() - {"other"}):
            await pool.serve(worker)

    running(act, "move", FLOAT32)


@pytest.mark.parametrize("switch_kv", ["auto", "move", "recompute"])
def test_clients_that_leave(switch_kv: SwitchKv) -> None:
    async def act(pool: WorkerPool) -> None:
        for wish in pool.client.wishes[::2]:
            pool.client.cancel(wish)
        await whole(pool, "a", "b", "c")
        for worker in "abc":
            await pool.serve(worker)

    running(act, switch_kv)
