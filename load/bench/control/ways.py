"""Ways to the engine that are compared: a request along each, and many of them in turns, at once, or as they arrive."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from itertools import accumulate, starmap

from livescale.load.bench.control.rows import OUTPUT_TOKENS, Latencies
from livescale.load.bench.samples import BenchFailed
from livescale.load.client import LoadClient
from livescale.load.engine_alone import EngineAlone
from livescale.load.records import Ask, find_fault
from livescale.shared.messages.requests import Submit
from livescale.shared.runtime.clock import SystemClock
from livescale.shared.runtime.waiting import together

MODEL = "bench"
PROMPT_TOKENS = 64
CONCURRENCY = 16
TURN, WARM_UPS = 25, 3  # requests of a way, and those before them that do not count
NEVER = 4e9

AskOnce = Callable[[int], Awaitable[None]]


async def in_turns(ways: Mapping[str, AskOnce], requests: int) -> dict[str, Latencies]:
    """Each way's latencies, some requests of each in turn, so that what else the machine does meets them all."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(0, requests, TURN):
        for name, ask in ways.items():
            for number in range(WARM_UPS):
                await ask(-1 - turn - number)
            took[name] += [await timed(ask, number) for number in range(turn, min(turn + TURN, requests))]
    return {name: Latencies(sorted(seconds)) for name, seconds in took.items()}


async def timed(ask: AskOnce, number: int) -> float:
    clock = SystemClock()
    begun = clock.now()
    await ask(number)
    return clock.now() - begun


async def find_capacity(ask: AskOnce, requests: int) -> float:
    """Requests a second with as many at a time as an instance runs."""
    clock, numbers = SystemClock(), iter(range(requests, 2 * requests))

    async def lane() -> None:
        for number in numbers:
            await ask(number)

    begun = clock.now()
    await together(*(lane() for _ in range(CONCURRENCY)))
    return requests / (clock.now() - begun)


async def open_loop(ask: AskOnce, requests: int, rate: float) -> list[float]:
    """Poisson arrivals, the same at every call; seconds of each request from when it was due."""
    chance, clock = random.Random(0), SystemClock()
    begun, took = clock.now(), list[float]()

    async def one(number: int, at: float) -> None:
        await asyncio.sleep(max(0.0, begun + at - clock.now()))
        await ask(number)
        took.append(clock.now() - begun - at)

    dues = accumulate(chance.expovariate(rate) for _ in range(requests))
    await together(*starmap(one, enumerate(dues, start=2 * requests)))
    return took


def prompt(number: int) -> list[int]:
    return random.Random(number).choices(range(1_000), k=PROMPT_TOKENS)


async def fetch(client: LoadClient, number: int, tokens: int = OUTPUT_TOKENS) -> None:
    """Send one streamed request. Raises BenchFailed if its answer is not whole."""
    record = await client.fetch(Ask(number, 0.0, prompt(number), tokens), client.now())
    if fault := find_fault(record):
        raise BenchFailed(f"request {number}: {fault}")


async def ask_engine(engine: EngineAlone, number: int) -> None:
    await engine.ask(submit(number))


def submit(number: int) -> Submit:
    return Submit(
        request_id=f"r{number}",
        model=MODEL,
        gateway="none",
        prompt=prompt(number),
        max_tokens=OUTPUT_TOKENS,
        deadline=NEVER,
    )
