"""What requests and their tokens cost processes in CPU time."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

# One request is told from its tokens by asking for few and for many of them.
FEW, MANY = 1, 65

Fetch = Callable[[int, int], Awaitable[None]]


@dataclass(frozen=True)
class Cost:
    """CPU seconds: of a request with its first token, and of each token after it. `gap`: seconds between two tokens."""

    request: float
    token: float
    gap: float


async def measure_costs(pids: Mapping[str, int], fetch: Fetch, requests: int, lanes: int) -> dict[str, Cost]:
    """By process. `fetch` asks for one request, by its number and how many tokens it is to have; so many go on at a
    time."""
    few, _ = await cpu_of(pids, fetch, FEW, range(requests), lanes)
    many, seconds = await cpu_of(pids, fetch, MANY, range(requests, 2 * requests), lanes)
    gap = seconds * lanes / requests / MANY
    return {name: cost_of(few[name] / requests, many[name] / requests, gap) for name in pids}


def cost_of(few: float, many: float, gap: float) -> Cost:
    """From CPU seconds of a request with few tokens and of one with many."""
    token = (many - few) / (MANY - FEW)
    return Cost(request=few - (FEW - 1) * token, token=token, gap=gap)


async def cpu_of(
    pids: Mapping[str, int], fetch: Fetch, tokens: int, numbers: range, lanes: int
) -> tuple[dict[str, float], float]:
    """CPU seconds of each process, and seconds that went by."""
    waiting = iter(numbers)

    async def lane() -> None:
        for number in waiting:
            await fetch(number, tokens)

    began, before = time.monotonic(), {name: cpu_seconds(pid) for name, pid in pids.items()}
    async with asyncio.TaskGroup() as tasks:
        for _ in range(lanes):
            tasks.create_task(lane())
    return {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}, time.monotonic() - began


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process, by the kernel's clock for it: finer than the ticks of /proc."""
    return time.clock_gettime(~pid << 3 | 2)
