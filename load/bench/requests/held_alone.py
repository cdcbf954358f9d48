"""The seconds between the tokens of a modelled engine that is called directly."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

from livescale.load.bench.system import MIB, MODEL
from livescale.load.engine_alone import EngineAlone, running
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.scheduling.batch import Batch
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.messages.requests import Submit
from livescale.shared.model.latency import find_latency
from livescale.shared.runtime.clock import SystemClock

TOKENS = 50  # of each request: a stream has one a second
PROMPT = list(range(10, 18))
ROOM, KV_BYTES, CONTEXT = 256, 256 * MIB, 128
NEVER = 4e9

AskGaps = Callable[[int], Awaitable[Sequence[float]]]  # the seconds between the tokens of request `number`


@asynccontextmanager
async def engine_gaps(checkpoint: Path, profile: Path) -> AsyncIterator[AskGaps]:
    """An engine whose steps take the times of the profile; it runs as long as the block of code."""
    opened = open_checkpoint(checkpoint, "bfloat16")
    memory = [memoryview(bytearray(layout.size_bytes)) for layout in opened.layouts]
    manifest = opened.manifest([opened.read_block(index, view) for index, view in enumerate(memory)])
    settings = WorkerSettings(kv_bytes=KV_BYTES, max_num_seqs=ROOM)
    runner = ModelledRunner(KV_BYTES, settings.block_size, find_latency(str(profile)), 1.0, SystemClock())
    times = TokenTimes()
    try:
        kv_blocks = await runner.load(manifest, CONTEXT)
        for index, view in enumerate(memory):
            await runner.add_block(index, view)
        limits = settings.limits(manifest.config, CONTEXT, kv_blocks)
        async with running(EngineAlone(runner, Scheduler(limits), times.take)) as engine:
            yield lambda number: times.gaps(engine, number)
    finally:
        await runner.close()


class TokenTimes:
    """When the steps of an engine gave tokens to requests, by their ids."""

    def __init__(self) -> None:
        self._at: dict[str, list[float]] = {}
        self._numbers = 0

    def take(self, batch: Batch) -> None:
        """Note when a step was done, for each request that got a token in it."""
        now = time.perf_counter()
        for chunk in batch.chunks:
            if chunk.sampling is not None:
                self._at[chunk.request_id].append(now)

    async def gaps(self, engine: EngineAlone, number: int) -> Sequence[float]:
        """Run a request of stream `number`, and return the seconds between its tokens."""
        self._numbers += 1
        request_id = f"{number}-{self._numbers}"
        self._at[request_id] = []
        await engine.ask(
            Submit(
                request_id=request_id,
                model=MODEL,
                gateway="none",
                prompt=PROMPT,
                max_tokens=TOKENS,
                deadline=NEVER,
            )
        )
        return [after - before for before, after in pairwise(self._at.pop(request_id))]
