"""Runs the worker's engine in this process, without gateway, router and bus.

Its latency is what the control plane is measured against, and its tokens are those that a disturbed system must return
too.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, cast

from livescale.load.records import Ask
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.engine.kernels.variants import KernelsName, choose_kernels
from livescale.services.worker.scheduling.batch import Batch
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.settings import MIB, WorkerSettings
from livescale.shared.messages.model_parallel import Meeting
from livescale.shared.messages.parameters import DType, KvCacheDType, Layout, Manifest
from livescale.shared.messages.requests import Sampling, Submit

if TYPE_CHECKING:  # torch takes seconds to import, and --help of many commands needs none
    from livescale.services.worker.engine.runner import EngineRunner

CONTEXT = 512
LOOPBACK = "127.0.0.1"
MOST_WAITING = 1_000_000  # callers here ask for everything at once
NEVER = 4e9


class EngineAlone:
    """The scheduler and the engine of a worker, called directly. `on_step` hears of each step that was done.

    The `followers` are the other ranks' engines, which take the same steps.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        on_step: Callable[[Batch], None] = lambda _: None,
        followers: Sequence[Runner] = (),
    ) -> None:
        self._runner = runner
        self._followers = followers
        self.pauses = runner.pauses
        self._scheduler = scheduler
        self._on_step = on_step
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._tokens: dict[str, list[int]] = {}
        self._work = asyncio.Event()
        self.idle = asyncio.Event()  # no step is under way, or about to be
        self.tokens = 0  # made so far

    async def ask(self, request: Submit) -> list[int]:
        """Run a request to its end, and return its tokens."""
        self._scheduler.add(request)
        tokens = self._tokens[request.request_id] = []
        self._waiting[request.request_id] = asyncio.get_running_loop().create_future()
        self._work.set()
        await self._waiting[request.request_id]
        del self._tokens[request.request_id]
        return tokens

    def cancel(self, request_id: str) -> None:
        """End a request; its caller gets the tokens that it has."""
        if self._scheduler.cancel(request_id) is not None:
            self._waiting.pop(request_id).set_result(None)

    async def run(self) -> None:
        while True:
            batch = self._scheduler.next_batch(pace=self._runner.rates.pace)
            if batch is None:
                self._work.clear()
                self.idle.set()
                await self._work.wait()
                self.idle.clear()
                continue
            chosen, *_ = await asyncio.gather(*(one.step(batch) for one in (self._runner, *self._followers)))
            outputs = self._scheduler.complete(batch, chosen, time())
            self._on_step(batch)
            for output in outputs:
                self._tokens[output.row.request_id] += output.row.token_ids
                self.tokens += len(output.row.token_ids)
                if output.row.finish_reason is not None:
                    self._waiting.pop(output.row.request_id).set_result(None)


@asynccontextmanager
async def engine_alone(
    checkpoint: Path,
    dtype: DType,
    layout: Layout = "plain",
    context: int = CONTEXT,
    shards: int = 1,
    kv_cache_dtype: KvCacheDType = "auto",
) -> AsyncIterator[EngineAlone]:
    """The checkpoint, loaded as a worker would with its default settings, and by the kernels that the environment names
    for workers; or as `shards` workers would that are one instance, and have bits of their own. By torch's kernels the
    bits of a layout are its own, too."""
    opened = open_checkpoint(checkpoint, dtype, shards, layout, kv_cache_dtype)
    memory = [memoryview(bytearray(layout.size_bytes)) for layout in opened.layouts]
    manifest = opened.manifest([opened.read_block(index, view) for index, view in enumerate(memory)])
    async with engine_over(manifest, memory, context) as engine:
        yield engine


@asynccontextmanager
async def engine_over(
    manifest: Manifest, memory: Sequence[memoryview], context: int = CONTEXT
) -> AsyncIterator[EngineAlone]:
    """An engine for the model whose blocks are in `memory`. A request has `context` tokens at most."""
    from livescale.services.worker.engine.runner import EngineRunner

    settings = WorkerSettings(kv_bytes=64 * MIB, max_num_waiting=MOST_WAITING)
    asked = cast(KernelsName, os.environ.get("LIVESCALE_KERNELS", "auto"))
    kernels = choose_kernels(asked, settings.threads)
    runners = [
        EngineRunner(settings.kv_bytes, settings.block_size, settings.threads, kernels=kernels)
        for _ in range(manifest.shards)
    ]
    try:
        kv_blocks = await _load(runners, manifest, memory, context)
        scheduler = Scheduler(settings.limits(manifest.config, context, kv_blocks))
        async with running(EngineAlone(runners[0], scheduler, followers=runners[1:])) as engine:
            yield engine
    finally:
        for runner in runners:
            await runner.close()


async def _load(
    runners: Sequence["EngineRunner"], manifest: Manifest, memory: Sequence[memoryview], context: int
) -> int:
    """Give each rank its blocks. Returns how many KV blocks all of them have."""
    if len(runners) > 1:
        meeting = Meeting(address=LOOPBACK, port=await runners[0].open_meeting(LOOPBACK))
        ranks = enumerate(runners)
        await asyncio.gather(*(one.meet(rank, len(runners), LOOPBACK, meeting) for rank, one in ranks))
    shards = [manifest.of_shard(rank) for rank in range(manifest.shards)]
    loading = (one.load(shard, context) for one, shard in zip(runners, shards, strict=True))
    kv_blocks = await asyncio.gather(*loading)
    for rank, (runner, shard) in enumerate(zip(runners, shards, strict=True)):
        for index in range(len(shard.blocks)):
            await runner.add_block(index, memory[rank * len(shard.blocks) + index])
    return min(kv_blocks)


@asynccontextmanager
async def running(engine: EngineAlone) -> AsyncIterator[EngineAlone]:
    """The engine's loop runs as long as the block of code."""
    task = asyncio.create_task(engine.run())
    try:
        yield engine
    finally:
        task.cancel()
        await asyncio.wait([task])


async def undisturbed(
    checkpoint: Path,
    dtype: DType,
    asks: Sequence[Ask],
    layout: Layout = "plain",
    context: int = CONTEXT,
    shards: int = 1,
    kv_cache_dtype: KvCacheDType = "auto",
) -> dict[int, list[int]]:
    """Token ids by the requests' indices, from one engine in this process, or one of so many ranks."""
    async with engine_alone(checkpoint, dtype, layout, context, shards, kv_cache_dtype) as engine:
        answers = await asyncio.gather(*(_ask(engine, ask) for ask in asks))
    return {ask.index: tokens for ask, tokens in zip(asks, answers, strict=True)}


async def _ask(engine: EngineAlone, ask: Ask) -> list[int]:
    return await engine.ask(
        Submit(
            request_id=str(ask.index),
            model="alone",
            gateway="none",
            prompt=ask.prompt,
            sampling=Sampling(temperature=ask.temperature, seed=ask.seed),
            max_tokens=ask.max_tokens,
            deadline=NEVER,
        )
    )
