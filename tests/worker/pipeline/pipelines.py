"""Workers that load parts of a model and run it as a pipeline, under virtual time."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from livescale.shared.messages.model_parallel import Pipeline, PipelineOver, Stage
from livescale.shared.messages.requests import Sampling, Submit
from livescale.shared.runtime.settings import SwitchKv
from livescale.shared.simulation.virtual_time import run
from livescale.shared.subjects import PIPELINE, PIPELINE_OVER
from tests.worker.live.engines import BLOCKS, FLOAT32, MODELLED, EngineKind
from tests.worker.live.pool import WorkerPool, worker_pool
from tests.worker.requests import penalised, random_prompt, submit

Cut = Sequence[tuple[str, int]]  # worker and the end of its blocks, in their order
PAIR: Cut = (("a", 2), ("b", BLOCKS))
WORKERS = ("a", "b", "c")


def command(pool: WorkerPool, cut: Cut, id: str = "p1", kv_blocks: int = 32) -> Pipeline:
    """The command of a pipeline, without a worker of its own."""
    starts = [0, *(stop for _, stop in cut)]
    stages = [
        Stage(node=pool.node(worker), first=first, stop=stop)
        for first, (worker, stop) in zip(starts, cut, strict=False)
    ]
    return Pipeline(
        id=id,
        plan_id="",
        model="m",
        version=pool.manifest.version,
        stages=stages,
        kv_blocks=kv_blocks,
        epoch=1,
        secret=b"known to them",
    )


async def tell(pool: WorkerPool, worker: str, told: Pipeline, **changes: Any) -> None:
    """Send a command to a worker. Raises BusError."""
    plan = replace(told, **{"plan_id": f"plan-{worker}", **changes})
    await pool.bus.call(PIPELINE, plan, timeout=5, id=worker)


async def form(pool: WorkerPool, cut: Cut = PAIR, id: str = "p1", kv_blocks: int = 32) -> None:
    """Form a pipeline as a planner does: the leader last."""
    told, leader = command(pool, cut, id, kv_blocks), cut[0][0]
    for worker in sorted({worker for worker, _ in cut}, key=lambda one: (one == leader, one)):
        await tell(pool, worker, told)


async def loaded(pool: WorkerPool, cut: Cut) -> None:
    """Have each worker load the blocks that it runs, and no more. A head that is tied needs the embedding."""
    start = 0
    held: dict[str, set[int]] = {cut[-1][0]: {0}} if pool.manifest.config.tie_word_embeddings else {}
    for worker, stop in cut:
        held.setdefault(worker, set()).update(range(start, stop))
        start = stop
    for worker, blocks in held.items():
        await pool.load(worker, sorted(blocks), "pipeline")
    await pool.until(lambda: all(pool.ready(worker) == len(blocks) for worker, blocks in held.items()))


async def whole(pool: WorkerPool, *workers: str) -> None:
    for worker in workers:
        await pool.load(worker, list(range(BLOCKS)), "pipeline")
    await pool.until(lambda: all(pool.ready(worker) == BLOCKS for worker in workers))


def request(number: int, tokens: int = 8, prompt: int = 0, **fields: float) -> Submit:
    sampling = penalised(number) if number % 3 == 2 else Sampling(temperature=0.8 * (number % 2), seed=number)
    return submit(
        f"r{number}",
        random_prompt(number, prompt or 5 + 37 * number % 170),
        max_tokens=tokens,
        sampling=sampling,
        **fields,
    )


async def ask(pool: WorkerPool, count: int, worker: str = "a", **fields: int) -> None:
    for number in range(len(pool.client.wishes), len(pool.client.wishes) + count):
        await pool.client.submit(request(number, **fields), worker)


def say_over(pool: WorkerPool, cut: Cut = PAIR, id: str = "p1") -> None:
    """End the pipeline as the planner does."""
    for worker in {worker for worker, _ in cut}:
        pool.bus.publish(PIPELINE_OVER, PipelineOver(pipeline=id, reason="the planner says so"), id=worker)


async def nothing_left(pool: WorkerPool) -> None:
    """Check that no worker has anything left of any pipeline."""
    workers = [member.worker._deployment for member in pool.members.values()]
    await pool.until(lambda: all(worker.pipelines._running is None for worker in workers))
    assert not any(worker.pipelines.pipeline or worker.live.shares or worker.pipelines.leads for worker in workers)
    names = [task.get_name() for task in asyncio.all_tasks()]
    assert not [name for name in names if name.startswith(("pipeline ", "hand-off ", "take "))]


@asynccontextmanager
async def pipeline_of(
    cut: Cut = PAIR, *others: str, kind: EngineKind = FLOAT32, kv_blocks: int = 32
) -> AsyncIterator[WorkerPool]:
    """Start a pipeline that serves, and other workers that serve by themselves."""
    async with worker_pool(*sorted({worker for worker, _ in cut}), *others, kind=kind) as pool:
        for worker in others:
            await pool.loaded(worker)
        await loaded(pool, cut)
        await form(pool, cut, kv_blocks=kv_blocks)
        await pool.until(lambda: pool.state(cut[0][0]) == "live")
        yield pool


def with_pipeline(
    act: Callable[[WorkerPool], Awaitable[None]],
    cut: Cut = PAIR,
    *others: str,
    kind: EngineKind = FLOAT32,
    kv_blocks: int = 32,
) -> None:
    async def main() -> None:
        async with pipeline_of(cut, *others, kind=kind, kv_blocks=kv_blocks) as pool:
            await act(pool)
            await pool.done()
            await nothing_left(pool)

    run(main(), limit_seconds=600)


async def has_tokens(pool: WorkerPool, count: int) -> None:
    await pool.until(lambda: sum(len(wish.tokens) >= count for wish in pool.client.wishes) >= 4)


THREE = (("a", 2), ("b", 4), ("c", BLOCKS))


Act = Callable[[WorkerPool], Awaitable[None]]


def running(act: Act, switch_kv: SwitchKv = "auto", kind: EngineKind = MODELLED) -> None:
    """While requests are run by three, and a fourth worker serves."""

    async def whole_play(pool: WorkerPool) -> None:
        await ask(pool, 6, tokens=30)
        await pool.until(lambda: sum(len(wish.tokens) >= 2 for wish in pool.client.wishes) >= 3)
        await act(pool)
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        await pool.until(lambda: all(report.pipeline is None for report in pool.reports.values()))

    with_pipeline(whole_play, THREE, "other", kind=dataclasses.replace(kind, switch_kv=switch_kv))
