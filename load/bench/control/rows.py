"""Evaluates `livescale bench control`: latencies and CPU time of requests and tokens, as records with bars."""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from livescale.load.bench.record import Record, measured
from livescale.shared.runtime.waiting import together

# One request is told from its tokens by asking for few and for many of them.
FEW, MANY = 1, 65

Fetch = Callable[[int, int], Awaitable[None]]
BENCH = "control"
GATEWAY, ENGINE, HOPS = "gateway", "engine", "bare hops"  # the ways that requests go
OUTPUT_TOKENS = 8
IDLE_MS, IDLE_STEPS, LOADED_MS = 3.0, 0.1, 10.0  # of added latency, at most; idle so much of a step more
TO_BARE_HOPS = 3.0  # at most, of what is added by processes that do nothing but pass a request on
FIRST_BYTE_MS = 20.0
TAIL_REQUESTS = 200  # of fewer a 99th percentile is their maximum


@dataclass(frozen=True)
class Cost:
    """CPU seconds: of a request with its first token, and of each token after it. `gap`: seconds between two tokens."""

    request: float
    token: float
    gap: float


async def measure_costs(pids: Mapping[str, int], fetch: Fetch, requests: int, lanes: int) -> dict[str, Cost]:
    """The CPU cost of each process. `fetch` asks for one request, by its number and how many tokens it is to have;
    `lanes` requests run at a time."""
    few, _ = await cpu_of(pids, fetch, FEW, range(requests), lanes)
    many, seconds = await cpu_of(pids, fetch, MANY, range(requests, 2 * requests), lanes)
    gap = seconds * lanes / requests / MANY
    return {name: cost_of(few[name] / requests, many[name] / requests, gap) for name in pids}


def cost_of(few: float, many: float, gap: float) -> Cost:
    """The cost of a request and of a token, from the CPU seconds of a request with few tokens and of one with many."""
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
    await together(*(lane() for _ in range(lanes)))
    return {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}, time.monotonic() - began


def cpu_seconds(pid: int) -> float:
    """CPU seconds of all threads of a process, by the kernel's clock for it, which is finer than the ticks of /proc."""
    return time.clock_gettime(~pid << 3 | 2)


@dataclass(frozen=True)
class Latencies:
    """The latencies of requests in seconds, sorted."""

    seconds: Sequence[float]

    def quantile(self, share: float) -> float:
        return self.seconds[min(len(self.seconds) - 1, round(share * (len(self.seconds) - 1)))]


@dataclass(frozen=True)
class PathLatencies:
    """How long requests take by each way: through the gateway, at the engine alone and, only `idle`, over bare hops,
    whose worker took `worked` seconds for one. `rate`: requests/s that the gateway can take."""

    idle: Mapping[str, Latencies]
    loaded: Mapping[str, Latencies]
    worked: float
    rate: float


def rows(paths: PathLatencies, first_bytes: Sequence[float]) -> Iterator[Record]:
    """A limit on what is added is the other side of its ratio."""
    step = paths.idle[ENGINE].quantile(0.5) / OUTPUT_TOKENS * 1e3
    yield measured(BENCH, "a step of the engine, idle, p50", step, "ms")
    limits = {"idle": IDLE_MS + IDLE_STEPS * step, "at 70 %": LOADED_MS}
    for case, latencies in (("idle", paths.idle), ("at 70 %", paths.loaded)):
        ours, bare = latencies[GATEWAY], latencies[ENGINE]
        yield measured(BENCH, f"latency of the engine alone, {case}, p50", bare.quantile(0.5) * 1e3, "ms")
        yield measured(BENCH, f"added latency, {case}, p50", added(ours, bare, 0.5), "ms", limits[case], at_most=1.0)
        if len(ours.seconds) >= TAIL_REQUESTS:
            other = bare.quantile(0.99) * 1e3
            yield measured(BENCH, f"added latency, {case}, p99", added(ours, bare, 0.99), "ms", other)
    yield from hop_rows(paths)
    yield measured(BENCH, "capacity", paths.rate, "requests/s")
    first = median(first_bytes) * 1e3
    yield measured(BENCH, "decision to first byte, p50", first, "ms", FIRST_BYTE_MS, at_most=1.0)


def hop_rows(paths: PathLatencies) -> Iterator[Record]:
    """What is added, against what as many hops add that do nothing."""
    hops = (paths.idle[HOPS].quantile(0.5) - paths.worked) * 1e3
    ours = added(paths.idle[GATEWAY], paths.idle[ENGINE], 0.5)
    yield measured(BENCH, "added latency of bare hops, idle, p50", hops, "ms")
    yield measured(BENCH, "added latency, idle, p50, to bare hops", ours, "ms", hops, at_most=TO_BARE_HOPS)


def added(ours: Latencies, bare: Latencies, share: float) -> float:
    """How many milliseconds are added to the latency of a bare engine, at this quantile."""
    return (ours.quantile(share) - bare.quantile(share)) * 1e3


def cost_rows(costs: Mapping[str, Cost], bare: Cost) -> Iterator[Record]:
    """`costs` by process; `bare`: of a stream with nothing behind it."""
    whole = Cost(sum(one.request for one in costs.values()), sum(one.token for one in costs.values()), bare.gap)
    for name, cost in {" + ".join(costs): whole, **costs}.items():
        yield measured(BENCH, f"CPU of a request, {name}", cost.request * 1e6, "us", bare.request * 1e6)
        yield measured(BENCH, f"CPU of a token, {name}", cost.token * 1e6, "us", bare.token * 1e6)
