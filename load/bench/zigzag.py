"""`livescale bench zigzag`: the queue of a live scale against the optimum, both played through without any process."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import click

from load.bench.record import Printer, Record, measured
from services.worker.zigzag.ilp import Optimum, solve
from services.worker.zigzag.rehearsal import TARGET, Rehearsal, rehearse
from services.worker.zigzag.rules import BEST_EFFORT, OFF, Bound
from services.worker.zigzag.tasks import Task

BENCH = "zigzag"
LAYERS, LOADS = (7, 16, 32), (2.0, 3.0, 6.0, 10.0)
BATCHES, FEWER = 12, 8  # waiting; and where they arrive over time, which makes programs much larger
WITHIN = 1.05
SOLVE_LAYERS, SOLVE_MS = 32, 40.0
SOLVE_LOADS = (1.0, 2.0, 2.5, 3.0, 6.0, 10.0)
WEIGHTS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Case:
    """`load`: how long a block takes, in layer times. Clock 0 is when the first block is ready."""

    name: str
    layers: int
    load: float
    tasks: tuple[Task, ...]

    @property
    def ready(self) -> list[float]:
        return [self.load * layer for layer in range(self.layers)]


@dataclass(frozen=True)
class Compared:
    """What came of a case."""

    case: Case
    queue: Rehearsal
    optimum: Optimum

    @property
    def ratio(self) -> float:
        return self.queue.mean_latency / self.optimum.mean_latency


@click.command()
@click.option("--worst", type=click.IntRange(0), default=5, show_default=True, help="Cases to explain.")
def zigzag(worst: int) -> None:
    """Mean latency of ZigZag's queue against the integer program's optimum, in layer times, over a grid of layers,
    load times and arrivals; the worst cases explained; and how long the program takes to solve."""
    printer = Printer(BENCH)
    compared = []
    for case in grid():
        compared.append(compare(case))
        printer.emit(against_optimum(compared[-1]))
    for record in (*solving_times(), *against_others()):
        printer.emit(record)
    kept = printer.finish()
    for each in sorted(compared, key=lambda each: -each.ratio)[:worst]:
        printer.progress(explained(each))
    sys.exit(0 if kept else 1)


def grid() -> Iterator[Case]:
    for layers in LAYERS:
        for load in LOADS:
            for name, tasks in workloads(layers):
                yield Case(f"{layers} layers, load {load:g}, {name}", layers, load, tasks)


def workloads(layers: int) -> Iterator[tuple[str, tuple[Task, ...]]]:
    """Batches that wait when the first block is ready, and batches that come as fast as one, one and a half, and two
    instances could serve them, or at random; equal ones, and ones of unequal length."""
    chance = Random(layers)
    weights = [chance.choice(WEIGHTS) for _ in range(BATCHES)]
    yield "all wait", tasks_at([0.0] * BATCHES)
    yield "all wait, unequal", tasks_at([0.0] * BATCHES, weights)
    yield "half wait", tasks_at([max(0.0, layers * (number - FEWER / 2)) for number in range(FEWER)])
    for instances in (1.0, 1.5, 2.0):
        yield f"even, {instances:g}x", tasks_at([round(number * layers / instances) for number in range(FEWER)])
    gaps = [round(chance.expovariate(1.5 / layers)) for _ in range(FEWER)]
    yield "random, 1.5x", tasks_at([float(sum(gaps[:number])) for number in range(FEWER)])


def tasks_at(arrivals: Sequence[float], weights: Sequence[float] = ()) -> tuple[Task, ...]:
    return tuple(
        Task(f"{number:02}", float(at), weights[number] if weights else 1.0) for number, at in enumerate(arrivals)
    )


def compare(case: Case) -> Compared:
    return Compared(case, rehearse(case.tasks, case.ready), solve(case.tasks, case.ready))


def against_optimum(compared: Compared) -> Record:
    best = compared.optimum.mean_latency
    return measured(BENCH, compared.case.name, compared.queue.mean_latency, "layers", best, at_most=WITHIN)


def solving_times() -> Iterator[Record]:
    """CPU time of the program for a dozen batches that wait; what it imports is not counted."""
    for load in SOLVE_LOADS:
        case = Case(f"solve {SOLVE_LAYERS} layers, load {load:g}", SOLVE_LAYERS, load, tasks_at([0.0] * BATCHES))
        began = time.process_time()
        solve(case.tasks, case.ready)
        yield measured(BENCH, case.name, 1000 * (time.process_time() - began), "ms", SOLVE_MS, at_most=1.0)


def against_others() -> Iterator[Record]:
    """What the queue gains over the other modes, and what a bound of it costs: no bars, the live system has them."""
    case = Case("24 layers, load 6, all wait", 24, 6.0, tasks_at([0.0] * BATCHES))
    zigzag = rehearse(case.tasks, case.ready)
    for name, other in (
        ("best-effort", rehearse(case.tasks, case.ready, BEST_EFFORT)),
        ("off", rehearse(case.tasks, case.ready, OFF)),
        ("4 to 2 outstanding", rehearse(case.tasks, case.ready, bound=Bound(step_seconds=case.load))),
    ):
        text = f"{case.name}, against {name}"
        yield measured(BENCH, text, zigzag.mean_latency, "layers", other.mean_latency)
    yield measured(
        BENCH,
        f"{case.name}, ended while loading, against off",
        ended(zigzag, case),
        "batches",
        ended(rehearse(case.tasks, case.ready, OFF), case),
    )


def ended(run: Rehearsal, case: Case) -> float:
    return sum(end <= case.ready[-1] for end in run.ends.values())


def explained(compared: Compared) -> str:
    """Who was later than in the optimum, and how the layers were shared there and here."""
    case, queue, optimum = compared.case, compared.queue, compared.optimum
    late = [queue.ends[task.id] - end for task, end in zip(queue.tasks, optimum.ends, strict=True)]
    here = [queue.layers_run(TARGET, task.id) for task in queue.tasks]
    return (
        f"{case.name}: {compared.ratio:.3f}\n"
        f"  arrivals                {[task.arrival for task in queue.tasks]}\n"
        f"  weights                 {[task.weight for task in queue.tasks]}\n"
        f"  layers on target, queue {here}\n"
        f"  ..             optimum  {list(optimum.on_target)}\n"
        f"  later than the optimum  {[round(each, 2) for each in late]}; all blocks are ready at {case.ready[-1]:g}"
    )
