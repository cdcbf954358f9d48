"""Workers that load parts of a model and run it as a pipeline, under virtual time."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from livescale.shared.messages.pipelines import Pipeline, PipelineOver
from livescale.shared.messages.pipelines import Stage as Part
from livescale.shared.messages.requests import Sampling, Submit
from livescale.shared.settings import SwitchKv
from livescale.shared.subjects import PIPELINE, PIPELINE_OVER
from livescale.shared.virtual_time import run
from tests.worker.live.kinds import BLOCKS, FLOAT32, MODELLED, Kind
from tests.worker.live.stage import Stage, stage
from tests.worker.serving import random_prompt, submit

Cut = Sequence[tuple[str, int]]  # who runs the blocks up to which one, in their order
PAIR: Cut = (("a", 2), ("b", BLOCKS))
WORKERS = ("a", "b", "c")


def command(made: Stage, cut: Cut, id: str = "p1", kv_blocks: int = 32) -> Pipeline:
    """As told to nobody in particular."""
    starts = [0, *(stop for _, stop in cut)]
    stages = [
        Part(node=made.node(worker), first=first, stop=stop) for first, (worker, stop) in zip(starts, cut, strict=False)
    ]
    return Pipeline(
        id=id,
        plan_id="",
        model="m",
        version=made.manifest.version,
        stages=stages,
        kv_blocks=kv_blocks,
        epoch=1,
        secret=b"known to them",
    )


async def tell(made: Stage, worker: str, told: Pipeline, **changes: Any) -> None:
    """Raises BusError."""
    plan = replace(told, **{"plan_id": f"plan-{worker}", **changes})
    await made.bus.call(PIPELINE, plan, timeout=5, id=worker)


async def form(made: Stage, cut: Cut = PAIR, id: str = "p1", kv_blocks: int = 32) -> None:
    """As a planner does: the leader last."""
    told, leader = command(made, cut, id, kv_blocks), cut[0][0]
    for worker in sorted({worker for worker, _ in cut}, key=lambda one: (one == leader, one)):
        await tell(made, worker, told)


async def loaded(made: Stage, cut: Cut) -> None:
    """Each has what it runs, and no more."""
    start = 0
    held: dict[str, set[int]] = {}
    for worker, stop in cut:
        held.setdefault(worker, set()).update(range(start, stop))
        start = stop
    for worker, blocks in held.items():
        await made.load(worker, sorted(blocks), "pipeline")
    await made.until(lambda: all(made.ready(worker) == len(blocks) for worker, blocks in held.items()))


async def whole(made: Stage, *workers: str) -> None:
    for worker in workers:
        await made.load(worker, list(range(BLOCKS)), "pipeline")
    await made.until(lambda: all(made.ready(worker) == BLOCKS for worker in workers))


def request(number: int, tokens: int = 8, prompt: int = 0, **fields: float) -> Submit:
    sampling = Sampling(temperature=0.8 * (number % 2), seed=number)
    return submit(
        f"r{number}",
        random_prompt(number, prompt or 5 + 37 * number % 170),
        max_tokens=tokens,
        sampling=sampling,
        **fields,
    )


async def ask(made: Stage, count: int, worker: str = "a", **fields: int) -> None:
    for number in range(len(made.client.wishes), len(made.client.wishes) + count):
        await made.client.submit(request(number, **fields), worker)


def say_over(made: Stage, cut: Cut = PAIR, id: str = "p1") -> None:
    """The planner ends it."""
    for worker in {worker for worker, _ in cut}:
        made.bus.publish(PIPELINE_OVER, PipelineOver(pipeline=id, reason="the planner says so"), id=worker)


async def nothing_left(made: Stage) -> None:
    """Of any pipeline, at any worker."""
    workers = [member.worker._deployment for member in made.members.values()]
    await made.until(lambda: all(worker.pipelines._running is None for worker in workers))
    assert not any(worker.pipelines.pipeline or worker.live.shares or worker.pipelines.leads for worker in workers)
    names = [task.get_name() for task in asyncio.all_tasks()]
    assert not [name for name in names if name.startswith(("pipeline ", "hand-off ", "take "))]


@asynccontextmanager
async def line(cut: Cut = PAIR, *others: str, kind: Kind = FLOAT32, kv_blocks: int = 32) -> AsyncIterator[Stage]:
    """A pipeline that serves, and others that do by themselves."""
    async with stage(*sorted({worker for worker, _ in cut}), *others, kind=kind) as made:
        for worker in others:
            await made.loaded(worker)
        await loaded(made, cut)
        await form(made, cut, kv_blocks=kv_blocks)
        await made.until(lambda: made.state(cut[0][0]) == "live")
        yield made


def play(
    act: Callable[[Stage], Awaitable[None]],
    cut: Cut = PAIR,
    *others: str,
    kind: Kind = FLOAT32,
    kv_blocks: int = 32,
) -> None:
    async def main() -> None:
        async with line(cut, *others, kind=kind, kv_blocks=kv_blocks) as made:
            await act(made)
            await made.done()
            await nothing_left(made)

    run(main(), limit_seconds=600)


async def has_tokens(made: Stage, count: int) -> None:
    await made.until(lambda: sum(len(wish.tokens) >= count for wish in made.client.wishes) >= 4)


THREE = (("a", 2), ("b", 4), ("c", BLOCKS))


Act = Callable[[Stage], Awaitable[None]]


def running(act: Act, switch_kv: SwitchKv = "auto", kind: Kind = MODELLED) -> None:
    """While requests are run by three, and a fourth worker serves."""

    async def whole_play(made: Stage) -> None:
        await ask(made, 6, tokens=30)
        await made.until(lambda: sum(len(wish.tokens) >= 2 for wish in made.client.wishes) >= 3)
        await act(made)
        await made.until(lambda: all(wish.is_over for wish in made.client.wishes))
        await made.until(lambda: all(report.pipeline is None for report in made.reports.values()))

    play(whole_play, THREE, "other", kind=dataclasses.replace(kind, switch_kv=switch_kv))
