"""The system of `livescale bench live`: one instance serves on a core of its own, and another core is there to scale
out to."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from livescale.load.bench.live.steps import LiveRun, StepLog, total_layers
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.system import (
    BY_HAND,
    MIB,
    MODEL,
    SCALE_SECONDS,
    BenchSystem,
    Launcher,
    cores,
    give_core,
    parameter_bytes,
)
from livescale.load.bench.watch import Watch
from livescale.load.client import LoadClient, open_client
from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.shared.messages.transfers import LiveMode
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.model.checkpoint import load_model_config

DTYPE: Literal["bfloat16"] = "bfloat16"
CONTEXT = 1024
LONG = 400  # tokens, so many that a worker is busy with them while the other one is removed

Expected = Mapping[int, Sequence[int]]  # tokens of an undisturbed engine, by the index of the request


def model_blocks(checkpoint: Path) -> tuple[int, list[int]]:
    """How many layers a model has, and how many bytes each of its blocks."""
    config = load_model_config(checkpoint)
    return config.num_hidden_layers, [layout.size_bytes for layout in block_layouts(config, DTYPE)]


def asks(count: int, prompt_tokens: int, max_tokens: int, first: int = 0) -> list[Ask]:
    """Greedy requests that are due at once, each with a prompt of its own."""
    return [
        Ask(number, 0.0, random.Random(number).choices(range(1_000), k=prompt_tokens), max_tokens)
        for number in range(first, first + count)
    ]


@dataclass(frozen=True)
class LiveBenchSystem:
    """`source` serves all the time; the other worker is the target of every scale."""

    system: BenchSystem
    watch: Watch
    client: LoadClient
    steps: StepLog
    expected: Expected
    source: str
    target: str

    async def scale(self, mode: LiveMode, asks: Sequence[Ask]) -> LiveRun:
        """Have all requests wait, ask for a second instance, and return when it serves and all are answered."""
        self.steps.executions.clear()
        self.steps.hand_offs.clear()
        now = self.client.now()
        sending = [asyncio.create_task(self.client.fetch(ask, now)) for ask in asks]
        await self.watch.until(
            lambda: self.watch.requests + sum(one.done() for one in sending) >= len(asks), "all requests wait"
        )
        # A source that computes sends more slowly than the host's memory, and the planner has to know that it does.
        await self.watch.until(lambda: self.watch.busy() == [self.source], "the source has something to do")
        done = await self.system.scale(2, mode)
        records = self.checked(await asyncio.gather(*sending))
        await self.all_logged(asks)
        ready = [at for at in done.arrived[self.target] if at is not None]
        return LiveRun(mode, self.source, self.target, done.decision.at, ready, records, tuple(self.steps.executions))

    async def closed(self, asks: Sequence[Ask], lanes: int) -> float:
        """Seconds for these requests, so many at a time."""
        waiting, records = iter(asks), list[RequestRecord]()

        async def lane() -> None:
            for ask in waiting:
                records.append(await self.client.fetch(ask, self.client.now()))

        began = self.client.now()
        await asyncio.gather(*(lane() for _ in range(lanes)))
        seconds = self.client.now() - began
        self.checked(records)
        return seconds

    async def alone(self, asks: Sequence[Ask]) -> list[float]:
        """Seconds of the source's step for each of these requests, one after the other."""
        self.steps.executions.clear()
        self.checked([await self.client.fetch(ask, self.client.now()) for ask in asks])
        await self.all_logged(asks)
        return [one.end - one.start for one in self.steps.executions]

    async def shrink(self) -> None:
        """Scale back to the source alone. The instance without a request is removed: the source has one meanwhile."""
        await self.watch.until_quiet()
        async with only_busy(self.watch, self.source, self._long):
            await self.system.scale(1)
        await self.watch.until(lambda: self.watch.serving() == [self.source], f"{self.source} alone serves")
        await self.watch.until_quiet()

    async def _long(self) -> None:
        await self.client.fetch(Ask(-1, 0.0, [1], LONG), self.client.now())

    async def all_logged(self, asks: Sequence[Ask]) -> None:
        """What workers log comes a moment later than what they answer."""
        rows = sum(len(ask.prompt) + ask.max_tokens - 1 for ask in asks)
        expected = rows * self.steps.model_layers
        await self.watch.until(lambda: total_layers(self.steps.executions) >= expected, "all steps are logged")

    def checked(self, records: Sequence[RequestRecord]) -> Sequence[RequestRecord]:
        """Raises BenchFailed unless every request has the tokens of an undisturbed engine."""
        return checked(records, self.expected)


@asynccontextmanager
async def only_busy(watch: Watch, worker: str, ask: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """`worker` has a request, and no other has one, while the block of code runs. Nothing is busy before.

    The router gives a first request to whichever it likes; while that is under way a second goes to the other one.
    """
    asking: list[asyncio.Task[None]] = []
    try:
        while worker not in watch.busy():
            asking.append(asyncio.create_task(ask()))
            await watch.until(lambda: len(watch.busy()) == len(asking), f"{len(asking)} have something to do")
        for elsewhere in asking[:-1]:
            elsewhere.cancel()
        await watch.until(lambda: watch.busy() == [worker], f"{worker} alone has something to do")
        yield
    finally:
        for one in asking:
            one.cancel()
        await asyncio.wait(asking)


def checked(records: Sequence[RequestRecord], expected: Expected) -> Sequence[RequestRecord]:
    """Raises BenchFailed unless every request has the tokens of an undisturbed engine."""
    for record in records:
        if fault := find_fault(record):
            raise BenchFailed(f"request {record.index}: {fault}")
        right = list(expected[record.index][: record.asked_tokens])
        if record.token_ids != right:
            raise BenchFailed(f"request {record.index} has the tokens {record.token_ids}, not {right}")
    return records


@asynccontextmanager
async def live_bench_system(
    launcher: Launcher, checkpoint: Path, rate: float, steps: StepLog, expected: Expected
) -> AsyncIterator[LiveBenchSystem]:
    """`rate`: bytes a second of every link; 0: as many as it carries."""
    first, second = cores()
    async with _start(replace(launcher, echo=steps.echo), checkpoint, rate) as system:
        for worker, core in (("worker-0", first), ("worker-1", second)):
            give_core(system.pid(worker), core)
        watch = system.watch
        steps.changed = watch.changes.tell
        await watch.until(lambda: len(watch.workers) == 2 and len(watch.serving()) == 1, "one of two serves")
        [source] = watch.serving()
        [target] = watch.workers.keys() - {source}
        async with open_client(system.url, MODEL, SCALE_SECONDS) as client:
            yield LiveBenchSystem(system, watch, client, steps, expected, source, target)


def _start(launcher: Launcher, checkpoint: Path, rate: float) -> AbstractAsyncContextManager[BenchSystem]:
    """The monitor leaves everything as it is. Steps are logged at level debug."""
    return launcher.start(
        checkpoint,
        BY_HAND,
        workers=2,
        dtype=DTYPE,
        max_model_len=CONTEXT,
        arena_bytes=parameter_bytes(checkpoint) + 64 * MIB,
        link_rate=rate,
        log_level="debug",
        keep_parameters=False,  # each scale is to move them
        enable_prefix_caching=False,  # the same prompts are asked again and again
    )
