"""Whatever happens between workers that hand requests to each other: each ends once, with its tokens."""

import asyncio
from random import Random

import pytest

from livescale.shared.simulation.virtual_time import run
from tests.worker.disaggregation.pairs import move
from tests.worker.live.engines import FLOAT32, MODELLED, EngineKind
from tests.worker.live.pool import WorkerPool, late, worker_pool
from tests.worker.requests import random_prompt, submit

WORKERS = ("a", "b", "c")
SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 80))]


async def happen(pool: WorkerPool, chance: Random) -> None:
    """One thing that goes wrong, or that clients and operators do."""
    living = [worker for worker in pool.living() if pool.state(worker) == "serving"]
    match chance.choice(["cancel", "damage", "break", "slow", "freeze", "outage", "kill", "fence", "drain", "move"]):
        case "cancel":
            pool.client.cancel(chance.choice(pool.client.wishes))
        case "damage":
            pool.faults.damaged = 3
        case "break":
            pool.faults.messages = chance.randrange(4)
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            pool.faults.messages = None
        case "slow":
            pool.faults.message_seconds = chance.choice([0.003, 0.05, 0.5])
        case "freeze":
            await pool.freeze(chance.uniform(0.1, 3.0), *chance.sample(living, min(1, len(living))))
        case "outage":
            await pool.outage(chance.uniform(0.1, 2.0))
        case "kill" if len(living) > 1:
            await pool.kill(chance.choice(living))
        case "fence" if len(living) > 1:
            fenced = chance.choice(living)
            pool.fence(fenced)
            await asyncio.sleep(1.0)
            pool.client.lost_at(fenced)  # what it took over just before: a router finds that nobody has it
        case "drain" | "move" as what if len(living) > 1:
            await leave(pool, living, chance, drains=what == "drain")


async def leave(pool: WorkerPool, living: list[str], chance: Random, *, drains: bool) -> None:
    """Have others go on with everything that a worker has, which may drain meanwhile."""
    giver = chance.choice(living)
    takers = [one for one in living if one != giver]
    if drains:
        await pool.drain(giver)
    for request_id, place in pool.client.places.items():
        if place == giver:
            pool.act(moving(pool, request_id, giver, chance.choice(takers)))


async def moving(pool: WorkerPool, request_id: str, giver: str, taker: str) -> None:
    await move(pool, request_id, giver, taker)


async def play(seed: int, kind: EngineKind) -> None:
    chance = Random(seed)
    async with worker_pool(*WORKERS, kind=kind) as pool:
        for worker in WORKERS:
            await pool.loaded(worker)
        pool.broker.delays = late(seed)
        for number in range(12):
            length, tokens = chance.choice((3, 90, 200, 400)), chance.choice((1, 2, 8, 40))
            request = submit(f"r{number}", random_prompt(number % 4, length), max_tokens=tokens)
            prefill, decode = chance.sample(WORKERS, 2)
            await pool.client.submit(request, prefill, decode=decode)
            await asyncio.sleep(chance.choice((0.0, 0.01, 0.1)))
            if chance.random() < 0.4:
                await happen(pool, chance)
        pool.faults.message_seconds, pool.faults.damaged = 0.003, None
        await pool.done()


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_end_once_with_their_tokens_whatever_happens(seed: int) -> None:
    run(play(seed, MODELLED), limit_seconds=600)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 110)])
def test_and_so_they_do_with_engines_that_compute(seed: int) -> None:
    run(play(seed, FLOAT32), limit_seconds=600)
