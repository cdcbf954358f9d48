"""How much later a first token comes where the worker has to fetch the request's adapter than where the adapter is
there: a system of one worker, with room for one of two adapters."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

from livescale.load.bench.models.adapters import ALPHA, RANK
from livescale.load.bench.record import Record, measured
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.system import ONE_INSTANCE, BenchSystem, Launcher
from livescale.load.client import LoadClient, open_client
from livescale.load.make_adapter import make_adapter
from livescale.load.records import Ask, find_fault
from livescale.services.host.adapter import open_adapter
from livescale.services.supervisor.model_settings import LoraSettings
from livescale.shared.model.checkpoint import load_model_config

NAMES = "one", "other"
RATE = 100e6  # bytes a second of every link
PROMPT_TOKENS, TOKENS = 16, 2
ANSWER_SECONDS = 60.0
READ_TRIES, UNAVAILABLE = 60, 503
MOST_RATIO, MOST_MORE_SECONDS = 1.2, 0.05  # to the time of the adapter's bytes at the link's rate
LEAST_ROOM = 1 << 20  # as --adapter-bytes has it
FETCHED, LINE_SECONDS = "adapter_here", 10.0  # what a worker logs, and how long it is waited for


@dataclass
class FetchTimes:
    """Seconds to first tokens, with the adapter absent and with it resident in turn."""

    size_bytes: int
    absent: list[float] = field(default_factory=list)
    resident: list[float] = field(default_factory=list)


async def measure_fetches(launcher: Launcher, checkpoint: Path, rounds: int, rank: int = RANK) -> FetchTimes:
    """Ask for each of two adapters twice, `rounds` times, after a round that warms up. Each evicts the other.

    Raises BenchFailed where an answer is not whole, or where it is not every first of two requests that fetches.
    """
    fetched = 0

    def counted(name: str, line: str) -> None:
        nonlocal fetched
        fetched += FETCHED in line
        launcher.echo(name, line)

    async with AsyncExitStack() as running:
        made = Path(running.enter_context(TemporaryDirectory()))
        adapters = {
            name: make_adapter(made / name, checkpoint, rank, ALPHA, seed=seed) for seed, name in enumerate(NAMES)
        }
        config = load_model_config(checkpoint)
        times = FetchTimes(open_adapter(adapters[NAMES[0]], config, "bfloat16").size_bytes)
        start = _start(replace(launcher, echo=counted), checkpoint, adapters, times.size_bytes)
        system = await running.enter_async_context(start)
        clients = [await running.enter_async_context(open_client(system.url, name, ANSWER_SECONDS)) for name in NAMES]
        for client in clients:
            await _until_read(client)
        for number in range(rounds + 1):
            launcher.progress(
                f"first tokens with an adapter that is fetched and one that is there, {number} of {rounds} rounds"
            )
            for client in clients:
                for kind, seconds in (("absent", times.absent), ("resident", times.resident)):
                    before = fetched
                    took = await _first_token(client, number)
                    if kind == "absent":
                        await _until_told(lambda: fetched > before)  # noqa: B023 it ends before the next one
                    if fetched - before != (kind == "absent"):
                        raise BenchFailed(f"a request with its adapter {kind} fetched {fetched - before} adapters")
                    if number:
                        seconds.append(took)
    return times


async def _until_read(client: LoadClient) -> None:
    """Ask until a host has read the adapter, which a system does not wait for. Raises BenchFailed."""
    for _ in range(READ_TRIES):
        record = await client.fetch(Ask(0, 0.0, [1], TOKENS), client.now())
        if record.status != UNAVAILABLE:
            return
        await asyncio.sleep(record.retry_after or 1.0)
    raise BenchFailed(f"an adapter is not read after {READ_TRIES} tries: {record.error}")


async def _until_told(is_told: Callable[[], bool]) -> None:
    """Wait for the worker's line, which may come after the answer, as they come by different ways."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LINE_SECONDS):
            while not is_told():  # noqa: ASYNC110 a line of a log sets no event
                await asyncio.sleep(0.01)


async def _first_token(client: LoadClient, number: int) -> float:
    prompt = Random(number).choices(range(10, 1_000), k=PROMPT_TOKENS)
    record = await client.fetch(Ask(number, 0.0, prompt, TOKENS), client.now())
    if fault := find_fault(record):
        raise BenchFailed(f"a request with an adapter: {fault}")
    return record.token_at[0] - record.due


def _start(
    launcher: Launcher, checkpoint: Path, adapters: Mapping[str, Path], size_bytes: int
) -> AbstractAsyncContextManager[BenchSystem]:
    """One worker, with room for one adapter of this size and not for two."""
    return launcher.start(
        checkpoint,
        ONE_INSTANCE,
        loras=tuple(LoraSettings(name=name, path=str(path)) for name, path in adapters.items()),
        workers=1,
        dtype="bfloat16",
        max_model_len=PROMPT_TOKENS + TOKENS,
        link_rate=RATE,
        enable_prefix_caching=False,
        worker_options={"adapter_bytes": max(LEAST_ROOM, size_bytes * 3 // 2)},
    )


def fetch_rows(bench: str, times: FetchTimes) -> Iterator[Record]:
    """How much later a first token comes, to the time of the adapter's bytes at the link's rate."""
    bare = times.size_bytes / RATE
    later = median(times.absent) - median(times.resident)
    yield measured(bench, "first token, its adapter resident", 1e3 * median(times.resident), "ms")
    yield measured(
        bench,
        f"first token later, adapter of {times.size_bytes / 1e6:.1f} MB absent, to its bytes at {RATE / 1e6:g} MB/s",
        1e3 * later,
        "ms",
        1e3 * bare,
        at_most=MOST_RATIO + MOST_MORE_SECONDS / bare,
    )
