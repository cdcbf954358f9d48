"""How many streams gateway and router hold, on a core each, beside the engine when it is called directly.

A stream asks for 50 tokens each second. Steps of the modelled engine take 0.5 ms, whatever is in them.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from livescale.load.bench.record import Record, measured
from livescale.load.bench.requests.held_alone import CONTEXT, KV_BYTES, PROMPT, ROOM, TOKENS, AskGaps, engine_gaps
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.system import MODEL, Launcher, cores, keep_on_core
from livescale.load.client import LoadClient, open_client
from livescale.load.records import Ask, find_fault

BENCH = "requests"
PROFILE = "source: steps of half a millisecond\nprefill: [0.5, 0, 0]\ndecode: [0.5, 0, 0]\n"
FEW, MOST = 2, 4_096  # streams
BASE_WINDOWS, CUTS = 3, 3
MOST_LONGER = 2.0
ANSWER_SECONDS = 60.0


async def measure_held(launcher: Launcher, checkpoint: Path, seconds: float) -> Sequence[Record]:
    """Find both numbers, by windows of so many seconds."""
    with TemporaryDirectory() as directory:
        profile = Path(directory) / "profile.yaml"
        profile.write_text(PROFILE)
        progress = launcher.progress
        progress("streams of the engine, called directly")
        async with engine_gaps(checkpoint, profile) as gaps_of:
            alone = await find_held(progress, gaps_of, seconds)
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
