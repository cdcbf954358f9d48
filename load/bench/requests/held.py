"""How many streams gateway and router hold, on a core each, beside the engine when it is called directly.

A stream asks for 50 tokens each second. Steps of the modelled engine take 0.5 ms, whatever is in them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from livescale.load.bench.record import Record, measured
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.system import MIB, MODEL, Launcher, cores, keep_on_core
from livescale.load.client import LoadClient, open_client
from livescale.load.engine_alone import EngineAlone, running
from livescale.load.records import Ask, find_fault
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.scheduling.batch import Batch
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.messages.requests import Submit
from livescale.shared.model.latency import find_latency
from livescale.shared.runtime.clock import SystemClock

BENCH = "requests"
TOKENS = 50  # of each request: a stream has one a second
PROMPT = list(range(10, 18))
PROFILE = "source: steps of half a millisecond\nprefill: [0.5, 0, 0]\ndecode: [0.5, 0, 0]\n"
ROOM, KV_BYTES, CONTEXT = 256, 256 * MIB, 128
FEW, MOST = 2, 4_096  # streams
BASE_WINDOWS, CUTS = 3, 3
MOST_LONGER = 2.0
ANSWER_SECONDS = 60.0
NEVER = 4e9

AskGaps = Callable[[int], Awaitable[Sequence[float]]]  # the seconds between the tokens of request `number`


async def measure_held(launcher: Launcher, checkpoint: Path, seconds: float) -> Sequence[Record]:
    """Find both numbers, by windows of so many seconds."""
    with TemporaryDirectory() as directory:
        profile = Path(directory) / "profile.yaml"
        profile.write_text(PROFILE)
        progress = launcher.progress
        progress("streams of the engine, called directly")
        alone = await _held_by_engine(progress, checkpoint, profile, seconds)
        progress("streams through gateway and router")
        held = await _held_by_system(launcher, checkpoint, profile, seconds)
    return [measured(BENCH, f"streams held at {TOKENS} tokens/s, to the engine alone", held, "streams", alone)]


async def find_held(progress: Callable[[str], None], gaps_of: AskGaps, seconds: float) -> int:
    """The most streams whose TBT at p99 is not twice as long as that of few streams, and which get their tokens."""
    base = median([await _p99(gaps_of, FEW, seconds) for _ in range(BASE_WINDOWS)])
    progress(f"  {FEW} streams: TBT p99 {1e3 * base:.2f} ms")

    async def holds(streams: int) -> bool:
        p99 = await _p99(gaps_of, streams, seconds)
        progress(f"  {streams} streams: TBT p99 {1e3 * p99:.2f} ms")
        return p99 <= MOST_LONGER * base

    most = FEW
    while 2 * most <= MOST and await holds(2 * most):
        most *= 2
    step = most // 2
    for _ in range(CUTS):
        if step and most < MOST and await holds(most + step):
            most += step
        step //= 2
    return most


async def _p99(gaps_of: AskGaps, streams: int, seconds: float) -> float:
    """The 99th percentile of TBT of so many streams; infinite where a request takes longer than its second."""
    clock = asyncio.get_running_loop()
    begun, gaps, is_late = clock.time(), list[float](), False

    async def stream(number: int) -> None:
        nonlocal is_late
        for turn in range(max(1, round(seconds))):
            due = begun + turn + number / streams
            await asyncio.sleep(max(0.0, due - clock.time()))
            gaps.extend(await gaps_of(number))
            is_late = is_late or clock.time() > due + 1.0

    await asyncio.gather(*map(stream, range(streams)))
    gaps.sort()
    return float("inf") if is_late else gaps[round(0.99 * (len(gaps) - 1))]


async def _held_by_system(launcher: Launcher, checkpoint: Path, profile: Path, seconds: float) -> int:
    async with launcher.start(
        checkpoint,
        {"max_instances": 1},
        workers=1,
        engine="modelled",
        engine_profile=str(profile),
        max_model_len=CONTEXT,
        worker_options={"max_num_seqs": ROOM},
        kv_bytes=KV_BYTES,
    ) as system:
        for child, core in zip(("gateway-0", "router-0"), cores(), strict=True):
            keep_on_core(system.pid(child), core)
        async with open_client(system.url, MODEL, ANSWER_SECONDS) as client:
            return await find_held(launcher.progress, lambda number: _gaps(client, number), seconds)


async def _gaps(client: LoadClient, number: int) -> Sequence[float]:
    record = await client.fetch(Ask(number, 0.0, PROMPT, TOKENS), client.now())
    if fault := find_fault(record):
        raise BenchFailed(f"stream {number}: {fault}")
    return record.gaps


async def _held_by_engine(progress: Callable[[str], None], checkpoint: Path, profile: Path, seconds: float) -> int:
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
            return await find_held(progress, lambda number: times.gaps(engine, number), seconds)
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
