"""The rows of `livescale bench simulate`: what is run for each, and the bar that it is held against."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from livescale.load.bench.record import Record, measured
from livescale.load.scenario.bench.cases import BenchCase, TraceName, Traces
from livescale.load.scenario.bench.measure import CaseRun, exponent, in_own_process, run_case
from livescale.load.scenario.bench.seeds import run_seeds
from livescale.load.stats import percentile

BENCH = "simulate"
HOUR = 3600.0
HOUR_BARS: Mapping[TraceName, float] = {"conversations": 240.0, "code": 90.0}  # CPU seconds of an hour
BUSY_SECONDS, BUSY_BAR = 480.0, 300.0
IDLE_WORKERS, IDLE_BAR = 1000, 20.0  # virtual seconds in a second of CPU
MEMORY_BAR = 1.5e9
GROWTH_BAR, MEMORY_GROWTH_BAR, REQUESTS_GROWTH_BAR = 1.15, 1.0, 1.05
SEED_BAR, SLOW_SEED_BAR = 0.8, 4.0
FIRST_SEED = 100_000  # far from those that tests run


class BenchSizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much is run for each row. Bars of time shrink with it."""

    hour: float = HOUR
    busy: float = BUSY_SECONDS
    idle_workers: int = IDLE_WORKERS
    idle_seconds: float = 60.0
    memory_workers: int = IDLE_WORKERS
    grown_workers: tuple[int, ...] = (64, 256, 1024)
    grown_rates: tuple[float, ...] = (1.0, 4.0, 16.0)
    grown_seconds: float = 60.0
    seeds: int = 200


QUICK = BenchSizes(
    hour=120.0,
    busy=20.0,
    idle_workers=250,
    idle_seconds=20.0,
    memory_workers=64,
    grown_workers=(16, 64, 256),
    grown_rates=(1.0, 4.0),
    grown_seconds=20.0,
    seeds=20,
)


@dataclass(frozen=True)
class RowMaker:
    """Runs what rows need, and makes their records. `tell` takes what happens meanwhile."""

    sizes: BenchSizes
    traces: Traces
    tell: Callable[[str], None]

    def hour(self, trace: TraceName) -> Iterator[Record]:
        seconds = self.sizes.hour
        run = self._run(BenchCase(workers=64, seconds=seconds, trace=trace))
        case = f"{trace}{self._made_up(trace)}, {seconds:g} s, 64 workers"
        yield from timed(case, run, HOUR_BARS[trace] * seconds / HOUR)

    def busy(self) -> Iterator[Record]:
        """As large as the conversations of BlitzScale's Fig. 17, on all GPUs of its cluster A, half busy."""
        seconds = self.sizes.busy
        run = self._run(
            BenchCase(
                workers=32,
                seconds=seconds,
                trace="conversations",
                busy_share=0.5,
                size="24b",
                profile="mistral-24b-a800-tp2",
                ranks=2,
            )
        )
        case = f"32 GPUs at half capacity{self._made_up('conversations')}, {seconds:g} s"
        yield from timed(case, run, BUSY_BAR * seconds / BUSY_SECONDS)

    def idle(self) -> Iterator[Record]:
        workers = self.sizes.idle_workers
        run = self._run(BenchCase(workers=workers, seconds=self.sizes.idle_seconds))
        speed, bar = run.virtual_seconds / run.steady_seconds, IDLE_BAR * IDLE_WORKERS / workers
        yield measured(BENCH, f"{workers} workers idle", speed, "virtual s / CPU s", bar, at_least=1.0)

    def memory(self) -> Iterator[Record]:
        workers = self.sizes.memory_workers
        run = self._run(BenchCase(workers=workers, seconds=1.0, all_serve=True))
        bar = MEMORY_BAR if workers == IDLE_WORKERS else None
        yield measured(BENCH, f"{workers} workers with 8B each: memory", run.peak_bytes, "bytes", bar, at_most=1.0)
        yield measured(BENCH, f"{workers} workers with 8B each: time", run.cpu_seconds, "CPU s")

    def workers(self) -> Iterator[Record]:
        counts = self.sizes.grown_workers
        runs = [
            self._run(BenchCase(workers=count, seconds=self.sizes.grown_seconds, trace="conversations"))
            for count in counts
        ]
        named = f"{' -> '.join(map(str, counts))} workers at fixed load"
        times, sizes = [run.cpu_seconds for run in runs], [float(run.peak_bytes) for run in runs]
        for count, run in zip(counts, runs, strict=True):
            yield measured(BENCH, f"{count} workers, {self.sizes.grown_seconds:g} s: time", run.cpu_seconds, "CPU s")
            yield measured(BENCH, f"{count} workers: memory", run.peak_bytes, "bytes")
        yield measured(BENCH, f"{named}: time", exponent(counts, times), "exponent", GROWTH_BAR, at_most=1.0)
        yield measured(BENCH, f"{named}: memory", exponent(counts, sizes), "exponent", MEMORY_GROWTH_BAR, at_most=1.0)

    def requests(self) -> Iterator[Record]:
        rates, seconds = self.sizes.grown_rates, self.sizes.grown_seconds
        runs = [
            self._run(BenchCase(workers=64, seconds=seconds, trace="conversations", rate_scale=rate)) for rate in rates
        ]
        for rate, run in zip(rates, runs, strict=True):
            yield measured(BENCH, f"{run.requests} requests (x{rate:g}), {seconds:g} s: time", run.cpu_seconds, "CPU s")
        growth = exponent([run.requests for run in runs], [run.cpu_seconds for run in runs])
        named = f"requests {', '.join(f'x{rate:g}' for rate in rates)}: time"
        yield measured(BENCH, named, growth, "exponent", REQUESTS_GROWTH_BAR, at_most=1.0)

    def seeds(self) -> Iterator[Record]:
        self.tell(f"{self.sizes.seeds} random systems")
        run = in_own_process(run_seeds, FIRST_SEED, self.sizes.seeds)
        for name, share, bar in (("median", 50, SEED_BAR), ("p99", 99, SLOW_SEED_BAR)):
            seconds = percentile(run.seconds, share) or 0.0
            yield measured(BENCH, f"a seed of {self.sizes.seeds}: {name}", seconds, "CPU s", bar, at_most=1.0)

    def _run(self, case: BenchCase) -> CaseRun:
        of = "idle" if case.trace is None else f"{case.trace} x{case.rate_scale:g}"
        self.tell(f"{case.workers} workers, {case.seconds:g} s, {of}")
        run = in_own_process(run_case, case, self.traces)
        self.tell(
            f"  {run.cpu_seconds:.1f} CPU s (the loop took {run.slowness:.2f} times as long as told), {run.requests} "
            f"requests, {run.failed} failed, {run.peak_bytes / 1e6:.0f} MB, digest {run.digest}"
        )
        return run

    def _made_up(self, trace: TraceName) -> str:
        return "" if self.traces.file(trace) else " (made up)"


def timed(case: str, run: CaseRun, bar: float) -> Iterator[Record]:
    """The CPU time of a run; requests that failed are a row of their own, as they cost nothing."""
    yield measured(BENCH, case, run.cpu_seconds, "CPU s", bar, at_most=1.0)
    if run.failed:
        yield measured(BENCH, f"{case}: failed of {run.requests} requests", run.failed, "requests")


def makers(rows: RowMaker) -> dict[str, Callable[[], Iterator[Record]]]:
    """What makes the records of each row, by the row's name."""
    return {
        "conversations": lambda: rows.hour("conversations"),
        "code": lambda: rows.hour("code"),
        "busy": rows.busy,
        "idle": rows.idle,
        "memory": rows.memory,
        "workers": rows.workers,
        "requests": rows.requests,
        "seeds": rows.seeds,
    }


ROWS = ("conversations", "code", "busy", "idle", "memory", "workers", "requests", "seeds")
