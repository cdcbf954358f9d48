"""Requests on their way to a source: what comes damaged, late or not at all, and what came together."""

import asyncio

import pytest

from livescale.services.worker.instance.context import ACTIVATION, KV
from livescale.services.worker.live.handoff_receive import TOGETHER_SECONDS, HandOffBatch, IncomingHandOff
from livescale.shared.simulation.virtual_time import run
from tests.worker.live.engines import BLOCKS, CLOCK, noting
from tests.worker.live.live_scale import parked, with_live_scale
from tests.worker.live.pool import WorkerPool, worker_pool
from tests.worker.requests import random_prompt, submit


async def ask(pool: WorkerPool, count: int, rows: int, target: str = "t") -> None:
    for number in range(count):
        await pool.client.submit(submit(f"{target}{number}", random_prompt(number, rows), max_tokens=1), target)


class Waiting(IncomingHandOff):
    """A hand-off that is only told when it may begin."""

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
        async with worker_pool("s", "t", kind=noting(layers, steps)) as pool:
            await pool.beside("s", "t", [0, 1])
            await ask(pool, 3, rows=24)
            await pool.until(lambda: pool.count("t", "live_layers") == 3)
            pool.faults.messages = 2
            await pool.help("s", "t")
            await pool.until(lambda: pool.count("t", "returned_tasks") == 1)
            pool.faults.messages = None
            await pool.load("t", list(range(BLOCKS)), "zigzag")
            await pool.done()
            assert pool.count("s", "pulled_tasks") >= 2

    run(main(), limit_seconds=600)
    assert 2 in steps


def test_a_link_that_breaks_before_the_kv_is_there_has_the_source_compute_it_again() -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool)
        pool.faults.messages = 2  # the activation and its checksum
        await pool.help("s", "t")
        await pool.until(lambda: pool.count("s", "lost_kv") == 1)

    with_live_scale(act)


def test_an_activation_that_arrives_damaged_is_given_back_and_taken_once_it_is_right() -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool)
        pool.faults.damaged = ACTIVATION
        await pool.help("s", "t")
        await pool.until(lambda: pool.count("t", "returned_tasks") == 1)
        assert pool.count("s", "pulled_tasks") == 0
        await pool.until(lambda: pool.count("s", "pulled_tasks") == 1)
        assert pool.count("s", "lost_kv") == 0

    with_live_scale(act)


def test_kv_that_arrives_damaged_is_computed_again() -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool)
        pool.faults.damaged = KV
        await pool.help("s", "t")
        await pool.until(lambda: pool.count("s", "lost_kv") == 1)
        assert pool.count("t", "returned_tasks") == 0

    with_live_scale(act)


def test_a_request_whose_deadline_comes_while_its_kv_is_awaited_ends_then() -> None:
    async def act(pool: WorkerPool) -> None:
        deadline = CLOCK.wall() + 1.0
        await parked(pool, deadline=deadline)
        await pool.help("s", "t")
        await pool.until(lambda: pool.count("s", "pulled_tasks") == 1)
        pool.faults.message_seconds = 5.0
        await pool.until(lambda: pool.client.wishes[0].is_over)
        assert CLOCK.wall() < deadline + 0.1
        assert pool.client.wishes[0].ends == ["deadline"]

    with_live_scale(act)
