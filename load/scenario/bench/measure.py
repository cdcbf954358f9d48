"""Runs simulations in processes of their own, and measures the CPU time and the memory that each takes.

CPU times are those of a core on which a script's loop of 10^7 empty rounds takes `LOOP_SECONDS`. The loop is timed
before, between and after, as the same work takes more time on a busy machine.
"""

import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import log
from statistics import linear_regression, median
from typing import TypeVar

import click
import msgspec

from livescale.load.scenario.bench.cases import BenchCase, Traces
from livescale.load.scenario.play import PlayOptions, Progress, play
from livescale.services.worker.engine.heap import keep_freed_memory

ROUNDS, LOOP_SECONDS = 10_000_000, 0.36
BETWEEN_SECONDS = 20.0  # of CPU from one loop to the next
TELL_SECONDS = 10.0
SETTLED = 2.0  # virtual seconds after which an idle system has nothing left from its start

T = TypeVar("T")

_round = 0


class CaseRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one run took: seconds of CPU, scaled, from its start on, and at most so many bytes of memory.

    `steady_seconds` of CPU went into the `virtual_seconds` after the system had settled. `slowness` is by how much
    this core was slower than the one that figures are for.
    """

    cpu_seconds: float
    steady_seconds: float
    virtual_seconds: float
    peak_bytes: int
    requests: int
    failed: int
    slowness: float
    digest: str


class ScaledCpu:
    """Counts this process's CPU time without that of the loops, which it times now and then."""

    def __init__(self) -> None:
        self._loops = list[float]()
        self._in_loops = 0.0
        self._last = 0.0
        self.time_loop()

    def seconds(self) -> float:
        return time.process_time() - self._in_loops

    def time_loop(self) -> None:
        global _round  # as in a loop of a script, which is what figures are for
        begun = time.process_time()
        for _round in range(ROUNDS):
            pass
        self._loops.append(time.process_time() - begun)
        self._in_loops += self._loops[-1]
        self._last = self.seconds()

    def is_due(self) -> bool:
        return self.seconds() - self._last >= BETWEEN_SECONDS

    @property
    def slowness(self) -> float:
        return median(self._loops) / LOOP_SECONDS


class CpuWatch:
    """Takes the CPU time at each progress of a run, and says how far it is."""

    def __init__(self, cpu: ScaledCpu, seconds: float) -> None:
        self._cpu = cpu
        self._seconds = seconds
        self._told = time.monotonic()
        self._settled: tuple[float, float] | None = None
        self._latest = (0.0, 0.0)

    def __call__(self, progress: Progress) -> None:
        if self._cpu.is_due():
            self._cpu.time_loop()
        self._latest = (progress.at, self._cpu.seconds())
        if self._settled is None and progress.at >= SETTLED:
            self._settled = self._latest
        if time.monotonic() - self._told >= TELL_SECONDS:
            self._told = time.monotonic()
            done = f"{progress.at:.0f} of {self._seconds:.0f} simulated s"
            click.echo(f"  {done}, {progress.came} requests came", err=True)

    def steady(self) -> tuple[float, float]:
        """Virtual seconds since the system settled, and the CPU seconds that went into them."""
        (at, cpu), (first_at, first_cpu) = self._latest, self._settled or (0.0, 0.0)
        return at - first_at, cpu - first_cpu


def run_case(case: BenchCase, traces: Traces) -> CaseRun:
    """Run a case in this process. Raises ValueError."""
    keep_freed_memory()  # as `livescale simulate` does
    cpu = ScaledCpu()
    system, begun = case.system(traces), cpu.seconds()
    watch = CpuWatch(cpu, case.seconds)
    result, _ = play(system, PlayOptions(tell=watch))
    took = cpu.seconds() - begun
    cpu.time_loop()
    virtual, steady = watch.steady()
    return CaseRun(
        cpu_seconds=took / cpu.slowness,
        steady_seconds=steady / cpu.slowness,
        virtual_seconds=virtual,
        peak_bytes=peak_bytes(),
        requests=sum(model.requests for model in result.models),
        failed=sum(model.failed for model in result.models),
        slowness=cpu.slowness,
        digest=result.digest,
    )


def peak_bytes() -> int:
    """The most memory that this process had at a time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_own_process(work: Callable[..., T], *given: object) -> T:
    """Do `work` in a process of its own, so that its memory is its own too."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *given).result()


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """How `values` grow: with sizes to the power of this, by the least squares of the logarithms."""
    return linear_regression([log(size) for size in sizes], [log(value) for value in values]).slope
