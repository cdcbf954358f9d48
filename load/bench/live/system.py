"""The system of `livescale bench live`: one instance serves on a core of its own, and another core is there to scale
out to."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from livescale.load.bench.live.steps import LiveRun, StepLog, total_layers
from livescale.load.bench.losses import HOLDERS, Losses, heard
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.scales import SCALE_SECONDS, scaled
from livescale.load.client import LoadClient, open_client
from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.services.supervisor.commands import WORKER_NICE
from livescale.services.supervisor.model_settings import ModelSettings
from livescale.services.supervisor.settings import StackSettings
from livescale.services.supervisor.stack import Progress, Stack
from livescale.shared.bus.contract import Bus
from livescale.shared.messages.membership import RouterReport, ServiceName, WorkerReport
from livescale.shared.messages.transfers import LiveMode
from livescale.shared.subjects import HEARTBEAT
from livescale.shared.transfer.waiting import Changes

MODEL = "bench"
DTYPE: Literal["bfloat16"] = "bfloat16"
CONTEXT = 1024
PATIENCE_SECONDS = 60.0
LONG = 400  # tokens, so many that a worker is busy with them while the other one is removed
MIB = 1024 * 1024

Expected = Mapping[int, Sequence[int]]  # tokens of an undisturbed engine, by the index of the request


def asks(count: int, prompt_tokens: int, max_tokens: int, first: int = 0) -> list[Ask]:
    """Greedy requests that are due at once, each with a prompt of its own."""
    return [
        Ask(number, 0.0, random.Random(number).choices(range(1_000), k=prompt_tokens), max_tokens)
        for number in range(first, first + count)
    ]


@dataclass
class Watch:
    """The last reports of workers, how many requests the router has, and who was lost."""

    services: Collection[ServiceName] = HOLDERS  # whose loss spoils a sample
    workers: dict[str, WorkerReport] = field(default_factory=dict)
    requests: int = 0
    changes: Changes = field(default_factory=Changes)
    losses: Losses = field(init=False)

    def __post_init__(self) -> None:
        self.losses = Losses(self.services, self.changes.tell)

    def hear(self, report: object) -> None:
        match report:
            case WorkerReport():
                self.workers[report.id] = report
            case RouterReport():
                self.requests = sum(queue.waiting_requests + queue.running for queue in report.queues)
        self.changes.tell()

    def serving(self) -> list[str]:
        return sorted(report.id for report in self.workers.values() if report.state == "serving")

    def busy(self) -> list[str]:
        loads = ((report.id, report.load) for report in self.workers.values())
        return sorted(id for id, load in loads if load is not None and load.running_requests + load.waiting_requests)

    def traffic(self) -> float:
        """Bytes a second that serving moved of late, of the worker that has most."""
        moved = (sum(each.sent + each.received for each in report.traffic or ()) for report in self.workers.values())
        return max(moved, default=0.0)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Return once that is true. Raises BenchFailed where it takes too long, Disturbed where a process is lost."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not holds():
                    self.losses.check(f"it is not yet true that {what}")
                    await self.changes.wait()
        except TimeoutError:
            raise BenchFailed(f"after {PATIENCE_SECONDS:g} s it is not yet true that {what}") from None


@dataclass(frozen=True)
class LiveBenchSystem:
    """`source` serves all the time; the other worker is the target of every scale."""

    bus: Bus
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
        # Until it has said so, it is as good a source as the host's memory, and would be slower while it computes.
        await self.watch.until(lambda: self.watch.busy() == [self.source], "the source has something to do")
        done = await scaled(self.bus, MODEL, 2, mode)
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
        await self.watch.until(lambda: not self.watch.busy() and not self.watch.requests, "all is quiet")
        async with only_busy(self.watch, self.source, self._long):
            await scaled(self.bus, MODEL, 1)
        await self.watch.until(lambda: self.watch.serving() == [self.source], f"{self.source} alone serves")
        await self.watch.until(lambda: not self.watch.busy() and not self.watch.requests, "all is quiet")

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
    checkpoint: Path, rate: float, steps: StepLog, expected: Expected, progress: Progress
) -> AsyncIterator[LiveBenchSystem]:
    """`rate`: bytes a second of every link; 0: as many as it carries."""
    first, second = cores()
    watch = Watch()
    async with Stack(stack_settings(checkpoint, rate), progress=progress, echo=steps.echo) as stack:
        for worker, core in (("worker-0", first), ("worker-1", second)):
            give_core(stack.supervisor.children[worker].pid or 0, core)
        steps.changed = watch.changes.tell
        async with following(stack.bus, watch):
            await watch.until(lambda: len(watch.workers) == 2 and len(watch.serving()) == 1, "one of two serves")
            [source] = watch.serving()
            [target] = watch.workers.keys() - {source}
            async with open_client(stack.url, MODEL, SCALE_SECONDS) as client:
                yield LiveBenchSystem(stack.bus, watch, client, steps, expected, source, target)


@asynccontextmanager
async def following(bus: Bus, watch: Watch) -> AsyncIterator[None]:
    """`watch` hears of this bus, as long as the block of code runs."""
    async with heard(bus, watch.losses):
        hearing = asyncio.create_task(follow(bus, watch))
        try:
            yield
        finally:
            hearing.cancel()
            await asyncio.wait([hearing])


async def follow(bus: Bus, watch: Watch) -> None:
    async for received in await bus.subscribe(HEARTBEAT):
        watch.hear(received.message)


def stack_settings(checkpoint: Path, rate: float) -> StackSettings:
    """The monitor leaves everything as it is. Steps are logged at level debug."""
    parameters = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
    model = ModelSettings(name=MODEL, path=str(checkpoint), upscale_delay_s=1e6, downscale_delay_s=1e6)
    return StackSettings(
        models=(model,),
        workers=2,
        port=0,
        device="cpu",
        dtype=DTYPE,
        max_model_len=CONTEXT,
        arena_bytes=parameters + 64 * MIB,
        link_rate=rate,
        log_level="debug",
        keep_parameters=False,  # each scale is to move them
        enable_prefix_caching=False,  # the same prompts are asked again and again
    )


def cores() -> tuple[int, int]:
    """Raises BenchFailed where there are not two."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise BenchFailed("this benchmark needs two CPU cores, one for each worker")
    return usable[0], usable[1]


def give_core(pid: int, core: int) -> None:
    """All threads of a worker to one core. Where each session has a group of its own, niceness counts in there only:
    then the group is what comes after the control plane."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(str(WORKER_NICE))
