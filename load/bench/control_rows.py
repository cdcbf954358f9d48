"""What `livescale bench control` says of what it measured, line by line (pure)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from livescale.load.bench.control_cost import Cost
from livescale.load.bench.record import Record, measured

BENCH = "control"
OUTPUT_TOKENS = 8
IDLE_MS, IDLE_STEPS, LOADED_MS = 3.0, 0.1, 10.0  # of added latency, at most; idle so much of a step more
FIRST_BYTE_MS = 20.0
TAIL_REQUESTS = 200  # of fewer a 99th percentile is their maximum


@dataclass(frozen=True)
class Latencies:
    """Seconds of each request, sorted."""

    seconds: Sequence[float]

    def quantile(self, share: float) -> float:
        return self.seconds[min(len(self.seconds) - 1, round(share * (len(self.seconds) - 1)))]


@dataclass(frozen=True)
class Way:
    """How requests reach the engine, idle and under load."""

    idle: Latencies
    loaded: Latencies


def rows(through: Way, alone: Way, rate: float, first_bytes: Sequence[float]) -> Iterator[Record]:
    """A limit on what is added is the other side of its ratio."""
    step = alone.idle.quantile(0.5) / OUTPUT_TOKENS * 1e3
    yield measured(BENCH, "a step of the engine, idle, p50", step, "ms")
    limits = {"idle": IDLE_MS + IDLE_STEPS * step, "at 70 %": LOADED_MS}
    for case, ours, bare in (("idle", through.idle, alone.idle), ("at 70 %", through.loaded, alone.loaded)):
        yield measured(BENCH, f"latency of the engine alone, {case}, p50", bare.quantile(0.5) * 1e3, "ms")
        yield measured(BENCH, f"added latency, {case}, p50", added(ours, bare, 0.5), "ms", limits[case], at_most=1.0)
        if len(ours.seconds) >= TAIL_REQUESTS:
            other = bare.quantile(0.99) * 1e3
            yield measured(BENCH, f"added latency, {case}, p99", added(ours, bare, 0.99), "ms", other)
    yield measured(BENCH, "capacity", rate, "requests/s")
    first = median(first_bytes) * 1e3
    yield measured(BENCH, "decision to first byte, p50", first, "ms", FIRST_BYTE_MS, at_most=1.0)


def added(ours: Latencies, bare: Latencies, share: float) -> float:
    """Milliseconds."""
    return (ours.quantile(share) - bare.quantile(share)) * 1e3


def cost_rows(costs: Mapping[str, Cost], bare: Cost) -> Iterator[Record]:
    """`costs` by process; `bare`: of a stream with nothing behind it."""
    whole = Cost(sum(one.request for one in costs.values()), sum(one.token for one in costs.values()), bare.gap)
    for name, cost in {" + ".join(costs): whole, **costs}.items():
        yield measured(BENCH, f"CPU of a request, {name}", cost.request * 1e6, "us", bare.request * 1e6)
        yield measured(BENCH, f"CPU of a token, {name}", cost.token * 1e6, "us", bare.token * 1e6)
