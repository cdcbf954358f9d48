"""Whatever happens at whatever moment of a hand-off: the request ends once, with its tokens, and leaves nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from livescale.shared.bus.contract import Disconnected
from livescale.shared.messages.membership import Stale
from livescale.shared.simulation.virtual_time import run
from livescale.shared.subjects import STALE
from tests.worker.live.engines import CLOCK
from tests.worker.live.pool import WorkerPool, worker_pool
from tests.worker.live.timed import MESSAGE_SECONDS, STEP_SECONDS
from tests.worker.requests import NEVER, random_prompt, submit

# Each takes as long, and in the middle of it something happens.
STEPS = [
    "told to help",
    "pull",
    "answer to the pull",
    "activation",
    "checksum of the activation",
    "word that it is here",
    "answer to that word",
    "KV",
    "checksum of the KV",
]
SOON = ("activation", "answer to that word")  # the others take too long for every run of the suite

Happening = Callable[[WorkerPool], Awaitable[None]]


async def leave(pool: WorkerPool) -> None:
    pool.client.cancel(pool.client.wishes[0])


async def reach_the_deadline(pool: WorkerPool) -> None:
    """Let the deadline pass, which was set for now."""
    await asyncio.sleep(2 * STEP_SECONDS)  # where a layer or a step is under way
    assert pool.client.wishes[0].ends == ["deadline"]


async def lack_the_bus(pool: WorkerPool) -> None:
    await pool.outage(2.0)


async def lack_the_link(pool: WorkerPool) -> None:
    pool.faults.messages = 0
    await asyncio.sleep(0.3)
    pool.faults.messages = None


async def kill_the_source(pool: WorkerPool) -> None:
    await pool.kill("s")


async def kill_the_target(pool: WorkerPool) -> None:
    await pool.kill("t")


async def stop_the_source(pool: WorkerPool) -> None:
    await pool.freeze(2.0, "s")


async def stop_the_target(pool: WorkerPool) -> None:
    await pool.freeze(2.0, "t")


async def stop_all(pool: WorkerPool) -> None:
    await pool.freeze(4.0)


async def abort_the_target(pool: WorkerPool) -> None:
    await pool.abort("t")


async def fence_the_source(pool: WorkerPool) -> None:
    pool.bus.publish(STALE, Stale(id="s", epoch=1), id="s")
    await asyncio.sleep(0.1)
    pool.client.lost_at("s")


@pytest.mark.parametrize(
    "happening",
    [
        leave,
        reach_the_deadline,
        lack_the_bus,
        lack_the_link,
        kill_the_source,
        kill_the_target,
        stop_the_source,
        stop_the_target,
        stop_all,
        abort_the_target,
        fence_the_source,
    ],
)
@pytest.mark.parametrize("step", [pytest.param(one, marks=() if one in SOON else pytest.mark.slow) for one in STEPS])
def test_whatever_happens_in_mid_hand_off_its_requests_end_with_their_tokens(happening: Happening, step: str) -> None:
    run(play(happening, MESSAGE_SECONDS * (STEPS.index(step) + 0.5)), limit_seconds=600)


async def play(happening: Happening, moment: float) -> None:
    """Play a source, another serving instance that does not help, and a target with two layers and two requests."""
    async with worker_pool("other", "s", "t") as pool:
        for worker in ("other", "s"):
            await pool.loaded(worker)
        await pool.load("t", [0, 1, 2], "zigzag")
        await pool.until(lambda: pool.state("t") == "live")
        pool.broker.delays = lambda subject: (MESSAGE_SECONDS,)
        at = CLOCK.wall() + 0.5
        deadlines = at if happening is reach_the_deadline else NEVER, NEVER
        for number, deadline in enumerate(deadlines):
            request = submit(f"r{number}", random_prompt(number, 90), max_tokens=4, deadline=deadline)
            await pool.client.submit(request, "t")
        await pool.until(lambda: pool.count("t", "live_layers") == 4)
        await asyncio.sleep(at - moment - CLOCK.wall())
        pool.act(told_to_help(pool))
        await asyncio.sleep(moment)
        await happening(pool)
        if "t" in pool.members.keys() - pool.aborted:
            await pool.finish_loading("t")
        await pool.done()


async def told_to_help(pool: WorkerPool) -> None:
    with suppress(Disconnected):
        await pool.help("s", "t")
