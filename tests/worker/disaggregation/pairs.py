"""A worker that prefills and one that decodes, under virtual time: real workers and engines, links that take time."""

from collections.abc import Awaitable, Callable
from itertools import cycle

import pytest

from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.bus.contract import BusError, Refusal
from livescale.shared.messages.disaggregation import HandOver
from livescale.shared.simulation.virtual_time import run
from livescale.shared.subjects import HAND_OVER
from tests.samples import sample
from tests.worker.live.engines import BFLOAT16, FLOAT32, MODELLED, EngineKind
from tests.worker.live.pool import WorkerPool, worker_pool
from tests.worker.requests import penalised, random_prompt, submit

Act = Callable[[WorkerPool], Awaitable[None]]
IDS = "float32", "bfloat16"
COMPUTING = pytest.mark.parametrize("kind", [FLOAT32, BFLOAT16], ids=IDS)


def by_turns(name: str, *values: object) -> pytest.MarkDecorator:
    """Run a test with each of these values, by engines that compute in one format and the other, by turns."""
    formats = zip(values, cycle((FLOAT32, BFLOAT16)), cycle(IDS), strict=False)
    return pytest.mark.parametrize(
        (name, "kind"), [pytest.param(value, kind, id=f"{value}-{id}") for value, kind, id in formats]
    )


def with_pair(act: Act, *others: str, kind: EngineKind = MODELLED) -> None:
    """Have p and d serve, and others too. When `act` returns, every request ends with its tokens and leaves nothing."""

    async def whole() -> None:
        async with worker_pool("p", "d", *others, kind=kind) as pool:
            for worker in ("p", "d", *others):
                await pool.loaded(worker)
            await act(pool)
            await pool.done()

    run(whole(), limit_seconds=600)


async def ask(pool: WorkerPool, count: int = 1, length: int = 200, tokens: int = 12, first: int = 0) -> None:
    """Submit so many requests to p, for d to decode; the first one is named by its number."""
    for number in range(first, first + count):
        request = submit(f"r{number}", random_prompt(number, length), max_tokens=tokens)
        await pool.client.submit(request, "p", decode="d")


def counted(pool: WorkerPool, worker: str, what: str, **labels: str) -> float:
    """What a worker counted of KV transfers."""
    return sample(pool.members[worker].telemetry, f"livescale_kv_{what}", **labels)


def taken(pool: WorkerPool) -> float:
    """How many requests d took over from p."""
    return counted(pool, "p", "transfers_total")


def failed(pool: WorkerPool, reason: str, worker: str = "p") -> float:
    return counted(pool, worker, "transfer_failures_total", reason=reason)


def scheduler_of(pool: WorkerPool, worker: str) -> Scheduler:
    scheduler = pool.members[worker].worker._serving.scheduler
    assert scheduler is not None
    return scheduler


def reserved(pool: WorkerPool, worker: str = "d") -> int:
    """How many requests KV blocks are kept for."""
    return len(scheduler_of(pool, worker).reservations)


def slow_link(pool: WorkerPool, seconds: float = 0.2) -> None:
    """Have each message of a link take so long."""
    pool.faults.message_seconds = seconds


async def move(pool: WorkerPool, request_id: str, giver: str = "p", taker: str = "d") -> int | None:
    """Have a request move, as the router does. Returns why it does not, as a code of HTTP."""
    order = HandOver(request_id=request_id, decode=taker)
    try:
        await pool.bus.call(HAND_OVER, order, timeout=30, id=giver)
    except Refusal as refusal:
        return refusal.code
    except BusError:
        return 503
    return None


async def running(pool: WorkerPool, count: int = 1, length: int = 150, tokens: int = 60) -> list[str]:
    """Have p decode so many requests, for nobody else; return once all have some tokens."""
    for number in range(count):
        request = submit(f"r{number}", random_prompt(number, length), max_tokens=tokens, sampling=penalised(number))
        await pool.client.submit(request, "p")
    await pool.until(lambda: all(len(wish.tokens) > 3 for wish in pool.client.wishes))
    return [f"r{number}" for number in range(count)]
