"""Moves that are refused, or during which a worker, a message, a piece or the request itself is lost: the tokens stay
those of one worker alone."""

import asyncio

import pytest

from livescale.services.worker.disaggregation.wire import DATA
from tests.worker.disaggregation.pairs import failed, move, reserved, running, slow_link, taken, with_pair
from tests.worker.live.engines import CLOCK
from tests.worker.live.members import used
from tests.worker.live.pool import WorkerPool
from tests.worker.requests import random_prompt, submit


def test_what_cannot_move_is_refused_for_good_and_what_finds_no_room_for_now() -> None:
    async def act(pool: WorkerPool) -> None:
        (id,) = await running(pool, tokens=100)
        assert await move(pool, "unknown") == 409
        assert await move(pool, id, taker="p") == 409
        for number in range(4):  # as many as run at once
            own = submit(f"own{number}", random_prompt(number, 40), max_tokens=150)
            await pool.client.submit(own, "d")
        assert await move(pool, id) == 429
        assert failed(pool, "refused") == 1
        await pool.until(lambda: pool.client.wishes[0].is_over)
        assert taken(pool) == 0
        last = submit("last", random_prompt(5, 40), max_tokens=1)
        await pool.client.submit(last, "p")
        assert await move(pool, "last") == 409

    with_pair(act)


def test_one_that_moves_already_is_not_moved_twice() -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool, 0.05)
        (id,) = await running(pool, tokens=100)
        assert sorted(await asyncio.gather(move(pool, id), move(pool, id)), key=str) == [409, None]

    with_pair(act)


def test_a_taker_that_dies_before_the_take_over_leaves_the_request_where_it_is() -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool, 0.2)
        (id,) = await running(pool, tokens=300)
        moving = asyncio.ensure_future(move(pool, id))
        await pool.until(lambda: reserved(pool) == 1)
        await pool.kill("d")
        assert await moving == 429
        await pool.until(lambda: pool.client.wishes[0].is_over)
        assert pool.client.wishes[0].submissions == 0

    with_pair(act)


def test_a_taker_that_dies_afterwards_loses_the_request_to_others() -> None:
    async def act(pool: WorkerPool) -> None:
        (id,) = await running(pool)
        assert await move(pool, id) is None
        await pool.kill("d")
        await pool.until(lambda: pool.client.wishes[0].is_over)
        assert pool.client.wishes[0].submissions == 1

    with_pair(act)


def test_a_giver_that_dies_in_mid_transfer_leaves_no_block_at_the_taker() -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool, 0.2)
        ids = await running(pool, 2, tokens=300)
        moving = asyncio.gather(*(move(pool, id) for id in ids))
        await pool.until(lambda: reserved(pool) == 2)
        await pool.kill("p")
        known = CLOCK.now()
        await pool.until(lambda: reserved(pool) == 0)
        assert CLOCK.now() - known < 1.0
        assert await moving == [503, 503]

    with_pair(act)


def test_a_damaged_piece_and_a_link_that_breaks_cost_another_try_while_it_is_decoded() -> None:
    async def act(pool: WorkerPool) -> None:
        pool.faults.damaged = DATA
        (id,) = await running(pool, tokens=200)
        assert await move(pool, id) is None
        assert failed(pool, "broken") == 1

    with_pair(act)


@pytest.mark.parametrize("lost", [".reserve", ".take-over", ".release-kv"])
def test_messages_that_are_lost_cost_time_and_nothing_else(lost: str) -> None:
    async def act(pool: WorkerPool) -> None:
        (id,) = await running(pool, tokens=200)
        pool.broker.lose = lambda subject: subject.endswith(lost)
        moving = asyncio.ensure_future(move(pool, id))
        await asyncio.sleep(1.5)
        pool.broker.lose = lambda subject: False
        await moving

    with_pair(act)


@pytest.mark.parametrize("moment", [0.0, 0.002, 0.004, 0.006, 0.01, 0.02, 0.05])
def test_a_request_that_is_cancelled_as_it_moves_leaves_both_workers_within_a_second(moment: float) -> None:
    async def act(pool: WorkerPool) -> None:
        (id,) = await running(pool, tokens=300)
        moving = asyncio.ensure_future(move(pool, id))
        await asyncio.sleep(moment)
        pool.client.cancel(pool.client.wishes[0])
        await asyncio.sleep(1.0)
        assert [used(pool.members[worker]) for worker in ("p", "d")] == [0, 0]
        await moving

    with_pair(act)


def test_a_request_that_loses_its_kv_meanwhile_stays_and_is_computed_again() -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool, 0.2)
        (id,) = await running(pool, tokens=100)
        moving = asyncio.ensure_future(move(pool, id))
        await pool.until(lambda: reserved(pool) == 1)
        scheduler = pool.members["p"].worker._serving.scheduler
        assert scheduler is not None
        scheduler._allocation.preempt(scheduler.placed[0])
        assert await moving == 429
        await pool.until(lambda: pool.client.wishes[0].is_over)
        assert taken(pool) == 0

    with_pair(act)


# The last ones end the request as its KV is nearly there: the transfer is given up twice in the same moment.
@pytest.mark.parametrize("seconds", [0.3, 0.068, 0.071, 0.074, 0.077, 0.08])
def test_a_request_that_ends_on_a_worker_that_drains_leaves_no_block_where_it_was_to_move(seconds: float) -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool, seconds)
        (id,) = await running(pool, tokens=12)
        moving = asyncio.ensure_future(move(pool, id))
        await pool.until(lambda: reserved(pool) == 1)
        await pool.drain("p")  # it is spare as soon as the request has ended
        await pool.until(lambda: pool.state("p") == "spare")
        await moving
        ended = CLOCK.now()
        await pool.until(lambda: reserved(pool) == 0)
        assert CLOCK.now() - ended < 1.0

    with_pair(act)
