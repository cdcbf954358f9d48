"""A live scale played through: one source and one target, from the first block on, event by event. Pure.

It says what a policy promises for given times of layers and blocks, to be compared with the optimum and with what was
measured.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import inf
from typing import assert_never

from livescale.services.worker.live.policy import (
    ALONE,
    ZIGZAG,
    BatchBudget,
    FinishTask,
    GiveBack,
    GiveTask,
    LiveTask,
    QueuedTask,
    QueueEffect,
    Release,
    Rule,
    RunLayer,
)
from livescale.services.worker.live.queue import LiveQueue, QueuePhase


class LayerTimes:
    """Seconds of one layer by rows: straight lines between the measured points, extended beyond the last two."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        """`seconds` are those of one layer, by rows. Raises ValueError for less than two points, and where more rows
        are faster.
        """
        points = sorted(seconds.items())
        if len(points) < 2 or points[0][0] < 1:
            raise ValueError(f"layer times of {sorted(seconds)} rows: at least two sizes from 1 on are needed")
        for (rows, less), (more_rows, more) in pairwise(points):
            if not 0 < less <= more:
                raise ValueError(f"layer times: {less} s for {rows} rows and {more} s for {more_rows}")
        self._rows = [rows for rows, _ in points]
        self._seconds = [each for _, each in points]

    def seconds(self, rows: int) -> float:
        """Return the seconds of one layer of a batch of so many rows. Below the first point it is that of the first
        point.
        """
        if rows <= self._rows[0]:
            return self._seconds[0]
        upper = min(bisect_left(self._rows, rows), len(self._rows) - 1)
        (low, high), (less, more) = self._rows[upper - 1 : upper + 1], self._seconds[upper - 1 : upper + 1]
        return less + (more - less) * (rows - low) / (high - low)


SOURCE, TARGET = "source", "target"
BLOCK, LAYER_DONE, SOURCE_DONE, ARRIVAL = range(4)  # the order of what happens at the same time
SimulatedEvent = tuple[float, int, int, tuple[str, ...]]  # when, what, which layer or arrival, of which tasks


@dataclass(frozen=True)
class LayerSpan:
    """Layers `first` .. `stop` - 1 of a task, run in one go."""

    where: str
    task: str
    first: int
    stop: int
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """When each task ended, and which instance ran which layers when. Times are in seconds."""

    tasks: tuple[LiveTask, ...]
    ends: dict[str, float]
    spans: tuple[LayerSpan, ...]

    @property
    def mean_latency(self) -> float:
        return sum(self.ends[task.id] - task.arrival for task in self.tasks) / len(self.tasks)

    def layers_run(self, where: str, task_id: str) -> int:
        return sum(span.stop - span.first for span in self.spans if (span.where, span.task) == (where, task_id))


@dataclass(frozen=True)
class Batches:
    """How much runs together, and how long a layer of it takes."""

    budget: BatchBudget = ALONE
    times: LayerTimes | None = None

    def seconds(self, tasks: Sequence[LiveTask]) -> float:
        """Return how long one layer of these tasks takes when they run together."""
        if len(tasks) == 1 or self.times is None:
            return sum(task.weight for task in tasks)
        return self.times.seconds(sum(task.rows for task in tasks))

    def seconds_from(self, entries: Sequence[QueuedTask], layers: int) -> float:
        """Return how long all layers take that are left. Rows join at the layer at which they come in."""
        starts = sorted({entry.done for entry in entries})
        return sum(
            (stop - start) * self.seconds([entry.task for entry in entries if entry.done <= start])
            for start, stop in pairwise([*starts, layers])
        )


EACH_ALONE = Batches()


def simulate(
    tasks: Iterable[LiveTask], ready: Sequence[float], rule: Rule = ZIGZAG, batches: Batches = EACH_ALONE
) -> Simulation:
    """Play a live scale through. `ready` says when each layer's block is there.

    The source is free from the start, and pulls whenever it is free again. Activations are handed over in no time
    (BlitzScale 5.2). Once the target serves alone, a new task goes to the one that has less to do.
    """
    ordered = sorted(tasks, key=lambda task: task.order)
    play = _Simulator(ordered, ready, LiveQueue(len(ready), rule, batches.budget), batches)
    play.run()
    return Simulation(tuple(play.tasks.values()), play.ends, tuple(play.spans))


class _Simulator:
    """A source and a target in the middle of a simulation."""

    def __init__(self, tasks: Sequence[LiveTask], ready: Sequence[float], queue: LiveQueue, batches: Batches) -> None:
        self.tasks = {task.id: task for task in tasks}
        self.ends: dict[str, float] = {}
        self.spans: list[LayerSpan] = []
        self._layers = len(ready)
        self._queue = queue
        self._batches = batches
        self._new: deque[LiveTask] = deque()  # that came at this moment, for the queue
        self._own: deque[LiveTask] = deque()  # the source's, once the target serves alone
        self._free = {SOURCE: -inf, TARGET: -inf}  # from when on
        self._now = -inf
        self._events: list[SimulatedEvent] = [(at, BLOCK, layer, ()) for layer, at in enumerate(ready)]
        self._events += [(task.arrival, ARRIVAL, number, (task.id,)) for number, task in enumerate(tasks)]
        heapify(self._events)

    def run(self) -> None:
        self._ask()
        while self._events:
            self._now, kind, number, task_ids = heappop(self._events)
            self._happen(kind, number, task_ids)
            if not self._events or self._events[0][:2] >= (self._now, ARRIVAL):
                self._go_on()

    def _happen(self, kind: int, layer: int, task_ids: tuple[str, ...]) -> None:
        if kind == BLOCK:
            self._perform(self._queue.block_ready(layer))
        elif kind == LAYER_DONE:
            self._perform(self._queue.layer_done())
        elif kind == SOURCE_DONE:
            self.ends |= dict.fromkeys(task_ids, self._now)
            self._source_goes_on()
        else:
            self._arrive(self.tasks[task_ids[0]])

    def _arrive(self, task: LiveTask) -> None:
        if self._queue.phase is not QueuePhase.PLAIN or self._work(TARGET) < self._work(SOURCE):
            self._new.append(task)
            return
        self._own.append(task)
        if not self._runs(SOURCE):
            self._source_goes_on()

    def _runs(self, where: str) -> bool:
        return self._free[where] > self._now

    def _work(self, where: str) -> float:
        """How long source or target is busy with what it has, once the target serves alone."""
        waiting = self._own if where == SOURCE else self._new
        work = max(0.0, self._free[where] - self._now) + sum(task.weight * self._layers for task in waiting)
        return work if where == SOURCE else work + self._queue.work

    def _go_on(self) -> None:
        """Let the target take up what waits before what is new."""
        self._target_goes_on()
        while self._new:
            self._perform(self._queue.append(self._new.popleft()))
        self._target_goes_on()

    def _target_goes_on(self) -> None:
        if not self._runs(TARGET):
            self._perform(self._queue.next())

    def _source_goes_on(self) -> None:
        if self._own:
            batch = self._batches.budget.batch(map(QueuedTask, self._own))
            self._source_run(batch)
            for _ in batch:
                self._own.popleft()
        else:
            self._ask()

    def _ask(self) -> None:
        self._perform(self._queue.pull(SOURCE, self._batches.budget))

    def _source_run(self, batch: Sequence[QueuedTask]) -> None:
        end = self._now + self._batches.seconds_from(batch, self._layers)
        self._run(SOURCE, batch, self._layers, end, SOURCE_DONE)

    def _target_run(self, task_ids: Sequence[str], layer: int) -> None:
        batch = [QueuedTask(self.tasks[id], layer) for id in task_ids]
        end = self._now + self._batches.seconds([entry.task for entry in batch])
        self._run(TARGET, batch, layer + 1, end, LAYER_DONE)

    def _run(self, where: str, batch: Sequence[QueuedTask], stop: int, end: float, then: int) -> None:
        self._free[where] = end
        self.spans += [LayerSpan(where, entry.task.id, entry.done, stop, self._now, end) for entry in batch]
        heappush(self._events, (end, then, batch[0].done, tuple(entry.task.id for entry in batch)))

    def _perform(self, effects: Iterable[QueueEffect]) -> None:
        taken: list[QueuedTask] = []
        for effect in effects:
            match effect:
                case RunLayer(task_ids, layer):
                    self._target_run(task_ids, layer)
                case GiveTask(task_id, _, layers_done):
                    taken.append(QueuedTask(self.tasks[task_id], layers_done))
                case FinishTask(task_id):
                    self.ends[task_id] = self._now
                case Release() | GiveBack():
                    pass  # a source that was released asks no more, as the queue's phase says
                case _:
                    assert_never(effect)
        if taken:
            self._source_run(taken)
