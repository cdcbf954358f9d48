"""`livescale bench zigzag`: compares the queue of a live scale with the optimum; both are played through without any
process."""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import click

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.zigzag.late import needs
from livescale.services.worker.engine.contract import CPU_ROWS, GPU_ROWS
from livescale.services.worker.live.optimum import Optimum, solve
from livescale.services.worker.live.planner import LIMIT_SECONDS, RELATIVE_GAP
from livescale.services.worker.live.policy import BEST_EFFORT, OFF, BatchBudget, LiveTask
from livescale.services.worker.live.simulation import SOURCE, TARGET, Batches, LayerTimes, Simulation, simulate

BENCH = "zigzag"
LAYERS, LOADS = (4, 7, 16, 32), (1.3, 2.0, 3.3, 6.0, 6.5, 10.0)
WAITING, COMING = 12, 6  # batches that wait, and that arrive over time
# Loads as parts of what one instance can serve. Programs of many layers with batches at random times take minutes.
RATES, SEEDS, MOST_LAYERS_COMING = (1.0, 1.5, 2.0, 2.5), range(3), 16
# Unequal batches, in rows; the load is in layers of one of ROWS[1]. A model of 500M on one core: rows over tokens/s.
ROWS = (100, 300, 500)
TIMES = LayerTimes({128: 128 / 212, 512: 512 / 198, 2048: 2048 / 165})
WITHIN = 1.05
# Prompts that run together: rows of each, and what every layer takes as such, in rows (on a core, on a GPU).
SHORT, PROMPTS, FIXED = 24, 64, {"a core": (15, CPU_ROWS), "a GPU": (200, GPU_ROWS)}
SOLVE_LAYERS, SOLVE_LOADS, SOLVE_MS, PASSES = 32, (1.0, 2.0, 2.5, 3.0, 6.0, 10.0), 40.0, 3


@dataclass(frozen=True)
class Case:
    """`load`: how long a block takes, in layer times. Clock 0 is when the first block is ready."""

    name: str
    layers: int
    load: float
    tasks: tuple[LiveTask, ...]

    @property
    def ready(self) -> list[float]:
        return [self.load * layer for layer in range(self.layers)]


@dataclass(frozen=True)
class Compared:
    """A case with the result of its queue and of its optimum."""

    case: Case
    queue: Simulation
    optimum: Optimum

    @property
    def ratio(self) -> float:
        return self.queue.mean_latency / self.optimum.mean_latency


@click.command()
@click.option(
    "--worst", type=click.IntRange(0), default=5, show_default=True, help="Number of the worst cases to explain."
)
def zigzag(worst: int) -> None:
    """Compare the mean latency of ZigZag's queue with the optimum of an integer program.

    Both are simulated over a grid of layers, load times and arrivals, in layer times. The worst cases are explained.
    Also measured are the time that the program takes to solve, and how many requests miss an SLO while parameters
    load, with live scaling and without.

    The optimum knows all times in advance, interrupts layers, and lets the source wait for a layer that is nearly done;
    the queue does none of this. The queue may still be better, as its tasks need not end in order.
    """
    printer = RecordPrinter(BENCH)
    compared = []
    for layers in LAYERS:
        for load in LOADS:
            cases = [compare(Case(name, layers, load, tasks)) for name, tasks in workloads(layers)]
            compared += cases
            printer.emit(worst_of(layers, load, cases))
    for record in (*solving_times(), *in_time(), *against_others(), *together(), *needs(BENCH)):
        printer.emit(record)
    kept = printer.finish()
    for each in sorted(compared, key=lambda each: -each.ratio)[:worst]:
        printer.progress(explained(each))
    sys.exit(0 if kept else 1)


def workloads(layers: int) -> Iterator[tuple[str, tuple[LiveTask, ...]]]:
    """Batches that wait when the first block is ready, half of which wait, and that come evenly or at random; all
    alike, and of unequal length."""
    chance = Random(layers)
    unequal = [TIMES.seconds(rows) / TIMES.seconds(ROWS[1]) for rows in chance.choices(ROWS, k=WAITING)]
    for kind, weights in (("equal", [1.0] * WAITING), ("unequal", unequal)):
        yield f"all wait, {kind}", tasks_at([0.0] * WAITING, weights)
        if layers > MOST_LAYERS_COMING:
            continue
        half = [max(0.0, (number - COMING // 2) * layers / 1.5) for number in range(COMING)]
        yield f"half wait, {kind}", tasks_at(half, weights)
        for rate in RATES:
            yield f"even, {rate:g}x, {kind}", tasks_at([number * layers / rate for number in range(COMING)], weights)
        for seed in SEEDS:
            yield f"random {seed}, 1.5x, {kind}", tasks_at(poisson(Random(seed), layers / 1.5), weights)


def poisson(chance: Random, gap: float) -> list[float]:
    gaps = [chance.expovariate(1 / gap) for _ in range(COMING)]
    return [sum(gaps[:number]) for number in range(COMING)]


def tasks_at(arrivals: Sequence[float], weights: Sequence[float]) -> tuple[LiveTask, ...]:
    pairs = zip(arrivals, weights, strict=False)
    return tuple(LiveTask(f"{number:02}", arrival, weight) for number, (arrival, weight) in enumerate(pairs))


def compare(case: Case) -> Compared:
    return Compared(case, simulate(case.tasks, case.ready), solve(case.tasks, case.ready))


def worst_of(layers: int, load: float, cases: Sequence[Compared]) -> Record:
    worst = max(cases, key=lambda each: each.ratio)
    case = f"{layers} layers, load {load:g}: {worst.case.name}, the worst of {len(cases)}"
    return measured(BENCH, case, worst.queue.mean_latency, "layers", worst.optimum.mean_latency, at_most=WITHIN)


def solving_times() -> Iterator[Record]:
    """CPU time for a dozen batches that wait. The paper's figure is of equal ones; others are harder."""
    waiting = [(name, tasks) for name, tasks in workloads(SOLVE_LAYERS) if len(tasks) == WAITING]
    for load in SOLVE_LOADS:
        for name, tasks in waiting:
            case = Case(f"solving {SOLVE_LAYERS} layers, load {load:g}, {name}", SOLVE_LAYERS, load, tasks)
            passes, bar = (1, None) if "unequal" in name else (PASSES, 1.0)
            milliseconds = min(1000 * cpu_seconds(case) for _ in range(passes))
            yield measured(BENCH, case.name, milliseconds, "ms", SOLVE_MS, at_most=bar)


def cpu_seconds(case: Case) -> float:
    began = time.process_time()
    solve(case.tasks, case.ready)
    return time.process_time() - began


def in_time() -> Iterator[Record]:
    """What the live system finds for unequal batches in the time that it has, against the optimum."""
    unequal = next(tasks for name, tasks in workloads(SOLVE_LAYERS) if name == "all wait, unequal")
    for load in SOLVE_LOADS:
        case = Case(f"{SOLVE_LAYERS} layers, load {load:g}, all wait, unequal, in time", SOLVE_LAYERS, load, unequal)
        found = solve(case.tasks, case.ready, LIMIT_SECONDS, RELATIVE_GAP).mean_latency
        optimum = solve(case.tasks, case.ready).mean_latency
        yield measured(BENCH, case.name, found, "layers", optimum, at_most=WITHIN)


def against_others() -> Iterator[Record]:
    """What the queue gains over the other modes: no bars, the live system has them."""
    case = Case("24 layers, load 6, all wait", 24, 6.0, tasks_at([0.0] * WAITING, [1.0] * WAITING))
    zigzag, off = simulate(case.tasks, case.ready), simulate(case.tasks, case.ready, OFF)
    best_effort = simulate(case.tasks, case.ready, BEST_EFFORT)
    for name, other in (("off", off), ("best-effort", best_effort)):
        yield measured(BENCH, f"{case.name}, against {name}", zigzag.mean_latency, "layers", other.mean_latency)
    text = f"{case.name}, ended while loading, against off"
    yield measured(BENCH, text, ended_while_loading(zigzag, case), "batches", ended_while_loading(off, case))


def together() -> Iterator[Record]:
    """Short prompts that run together, against one by one; times in those of a layer of one row."""
    for where, (fixed, rows) in FIXED.items():
        times = LayerTimes({1: fixed + 1, 2048: fixed + 2048})
        tasks = tuple(LiveTask(f"{number:02}", 0.0, times.seconds(SHORT), rows=SHORT) for number in range(PROMPTS))
        case = Case(f"{PROMPTS} prompts of {SHORT} tokens on {where}, together", 24, 3 * times.seconds(128), tasks)
        joined = simulate(case.tasks, case.ready, batches=Batches(BatchBudget(PROMPTS, rows), times))
        alone = simulate(case.tasks, case.ready)
        yield measured(BENCH, case.name, joined.mean_latency, "rows", alone.mean_latency, at_most=1.0)
        ended = ended_while_loading(joined, case), ended_while_loading(alone, case)
        yield measured(BENCH, f"{case.name}, ended while loading", ended[0], "prompts", ended[1])


def ended_while_loading(run: Simulation, case: Case) -> int:
    return sum(end <= case.ready[-1] for end in run.ends.values())


def explained(compared: Compared) -> str:
    """How the layers were shared there and here, and where the queue first falls behind."""
    case, queue, optimum = compared.case, compared.queue, compared.optimum
    here = [queue.layers_run(TARGET, task.id) for task in queue.tasks]
    lines = (
        f"{case.layers} layers, load {case.load:g}, {case.name}: {compared.ratio:.3f}",
        f"batches come at      {rounded(task.arrival for task in queue.tasks)}",
        f"with weights         {rounded(task.weight for task in queue.tasks)}",
        f"on target, queue     {here}",
        f"on target, optimum   {list(optimum.on_target)}",
        f"ends, queue          {rounded(queue.ends[task.id] for task in queue.tasks)}",
        f"ends, optimum        {rounded(optimum.ends)}; the last block is ready at {case.ready[-1]:g}",
        *first_behind(compared),
    )
    return "\n  ".join(lines)


def first_behind(compared: Compared) -> Iterator[str]:
    """What became of the first batch that ends later than in the optimum."""
    case, queue, optimum = compared.case, compared.queue, compared.optimum
    for task, end, count in zip(queue.tasks, optimum.ends, optimum.on_target, strict=True):
        if queue.ends[task.id] <= end + 1e-6:
            continue
        there = f"in the optimum at {end - task.weight * (case.layers - count):.4g} with {count}"
        on_source = [span for span in queue.spans if span.where == SOURCE]
        left = next((span for span in on_source if span.task == task.id), None)
        if left is None:
            yield f"first behind: batch {task.id} was finished on the target; {there}"
        else:
            free = max((span.end for span in on_source if span.end <= left.start), default=0.0)
            waited = left.start - max(free, task.arrival)
            here = f"left at {left.start:.4g} with {left.first} layers run, {waited:.4g} after the source was free"
            yield f"first behind: batch {task.id} {here}; {there}"
        return


def rounded(times: Iterable[float]) -> str:
    return " ".join(f"{each:.4g}" for each in times)
