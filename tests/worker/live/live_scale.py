"""Where tests of a live scale begin: a source that serves, and a target that has two layers."""

from collections.abc import Awaitable, Callable
from typing import Any

from livescale.shared.simulation.virtual_time import run
from tests.worker.live.engines import FLOAT32, EngineKind
from tests.worker.live.pool import WorkerPool, worker_pool
from tests.worker.requests import random_prompt, submit


def with_live_scale(act: Callable[[WorkerPool], Awaitable[None]], *others: str, kind: EngineKind = FLOAT32) -> None:
    """A source that serves, others that do too, and a target that has two layers."""

    async def whole() -> None:
        async with worker_pool("s", "t", *others, kind=kind) as pool:
            for worker in ("s", *others):
                await pool.loaded(worker)
            await pool.load("t", [0, 1, 2], "zigzag")
            await pool.until(lambda: pool.state("t") == "live")
            await act(pool)
            await pool.done()

    run(whole(), limit_seconds=600)


async def parked(pool: WorkerPool, count: int = 1, **fields: Any) -> None:
    """Have so many requests run through the target's two layers."""
    before = pool.count("t", "live_layers")
    for number in range(count):
        await pool.client.submit(submit(f"r{number}", random_prompt(number, 150), max_tokens=6, **fields), "t")
    await pool.until(lambda: pool.count("t", "live_layers") == before + 2 * count)
