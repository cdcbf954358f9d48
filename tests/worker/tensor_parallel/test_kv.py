"""KV between instances of two ranks: no rank waits for KV that will not come, or keeps KV that is not wanted."""

from collections.abc import Awaitable, Callable

import pytest

from livescale.services.worker.instance.context import PIECE_SECONDS
from livescale.shared.simulation.virtual_time import run
from tests.worker.live.engines import CLOCK, EngineKind
from tests.worker.live.members import late_kv
from tests.worker.live.pool import BUS_SECONDS, WorkerPool, worker_pool
from tests.worker.requests import random_prompt, submit

LATE_SECONDS = 2.0
GIVE, ANSWER = "worker.t.1.step", "answer.worker.s.1.take"


def play(late: str, act: Callable[[WorkerPool], Awaitable[None]]) -> None:
    """A source takes over a request of which a target has run two layers, while such messages come late."""

    async def whole() -> None:
        async with worker_pool("s", "t", kind=EngineKind("float32", ranks=2)) as pool:
            await pool.beside("s", "t", [0, 1, 2])
            await pool.client.submit(submit("r", random_prompt(1, 150), max_tokens=6), "t")
            await pool.until(lambda: pool.count("t", "live_layers") == 2)
            pool.broker.delays = lambda subject: (LATE_SECONDS if subject == late else BUS_SECONDS,)
            await pool.help("s", "t")
            await pool.until(lambda: late_kv(pool.members["s.1"]) == 1)
            await act(pool)
            await pool.abort("t")
            await pool.done()

    run(whole(), limit_seconds=600)


@pytest.mark.parametrize("late", [GIVE, ANSWER])
def test_a_led_rank_has_no_kv_of_a_request_that_has_ended_and_waits_for_none(late: str) -> None:
    async def act(pool: WorkerPool) -> None:
        began = CLOCK.now()
        pool.client.cancel(pool.client.wishes[0])
        await pool.until(lambda: late_kv(pool.members["s.1"]) == 0)
        assert CLOCK.now() < began + 0.1
        assert pool.count("s", "lost_kv") == 0

    play(late, act)


def test_a_rank_that_gave_up_says_so_to_who_waits_for_its_kv() -> None:
    async def act(pool: WorkerPool) -> None:
        began = CLOCK.now()
        await pool.abort("t")
        await pool.until(lambda: pool.count("s", "lost_kv") == 1)
        assert CLOCK.now() < began + LATE_SECONDS + 0.1 < began + PIECE_SECONDS

    play(GIVE, act)
