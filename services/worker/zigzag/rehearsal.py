"""A live scale played through: one source and one target, from the first block on, event by event. Pure.

What a policy promises for given layer times and block times: compared with the optimum, and with what was measured.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import assert_never

from services.worker.zigzag.effects import Finish, GiveBack, HandOver, Park, QueueEffect, Release, Run
from services.worker.zigzag.queue import LiveQueue, Phase
from services.worker.zigzag.rules import ZIGZAG, Bound, Rule
from services.worker.zigzag.tasks import Task

SOURCE, TARGET = "source", "target"
BLOCK, LAYER_DONE, SOURCE_DONE, ARRIVAL = range(4)  # the order of what happens at the same time


@dataclass(frozen=True)
class Span:
    """Layers `first` .. `stop` - 1 of a task, run in one go."""

    where: str
    task: str
    first: int
    stop: int
    start: float
    end: float


@dataclass(frozen=True)
class Rehearsal:
    """When each task ended, and who ran what when."""

    tasks: tuple[Task, ...]
    ends: dict[str, float]
    spans: tuple[Span, ...]

    @property
    def mean_latency(self) -> float:
        return sum(self.ends[task.id] - task.arrival for task in self.tasks) / len(self.tasks)

    def layers_run(self, where: str, task_id: str) -> int:
        return sum(span.stop - span.first for span in self.spans if (span.where, span.task) == (where, task_id))


def rehearse(
    tasks: Iterable[Task], ready: Sequence[float], rule: Rule = ZIGZAG, bound: Bound | None = None
) -> Rehearsal:
    """`ready`: when each layer's block is there. The source is free from the start, and pulls whenever it is again.

    Activations are handed over in no time (5.2). Once the target serves alone, a new task goes to who has less to do.
    """
    play = _Play(sorted(tasks, key=lambda task: task.order), ready, rule, bound)
    play.run()
    return Rehearsal(tuple(play.tasks.values()), play.ends, tuple(play.spans))


class _Play:
    """A source and a target in the middle of a rehearsal."""

    def __init__(self, tasks: Sequence[Task], ready: Sequence[float], rule: Rule, bound: Bound | None) -> None:
        self.tasks = {task.id: task for task in tasks}
        self.ends: dict[str, float] = {}
        self.spans: list[Span] = []
        self._layers = len(ready)
        self._queue = LiveQueue(self._layers, ready[0], rule, bound)
        self._outside: deque[Task] = deque()  # until the queue has room
        self._own: deque[Task] = deque()  # the source's, once the target serves alone
        self._free = {SOURCE: -inf, TARGET: -inf}  # from when on
        self._now = -inf
        self._events = [(at, BLOCK, layer, "") for layer, at in enumerate(ready)]
        self._events += [(task.arrival, ARRIVAL, number, task.id) for number, task in enumerate(tasks)]
        heapify(self._events)

    def run(self) -> None:
        self._perform(self._queue.pull(SOURCE))
        while self._events:
            self._now, kind, number, task_id = heappop(self._events)
            self._happen(kind, number, task_id)
            if not self._events or self._events[0][:2] >= (self._now, ARRIVAL):
                self._go_on()

    def _happen(self, kind: int, layer: int, task_id: str) -> None:
        if kind == BLOCK:
            self._perform(self._queue.block_ready(layer))
        elif kind == LAYER_DONE:
            self._perform(self._queue.layer_done(task_id))
        elif kind == SOURCE_DONE:
            self.ends[task_id] = self._now
            self._source_goes_on()
        else:
            self._arrive(self.tasks[task_id])

    def _arrive(self, task: Task) -> None:
        if self._queue.phase is not Phase.PLAIN or self._work(TARGET) < self._work(SOURCE):
            self._outside.append(task)
            return
        self._own.append(task)
        if not self._runs(SOURCE):
            self._source_goes_on()

    def _runs(self, where: str) -> bool:
        return self._free[where] > self._now

    def _work(self, where: str) -> float:
        """How long it has to do, once the target serves alone."""
        waiting = self._own if where == SOURCE else self._outside
        work = max(0.0, self._free[where] - self._now) + sum(task.weight * self._layers for task in waiting)
        return work if where == SOURCE else work + self._queue.work

    def _go_on(self) -> None:
        """The worker first, then what is new."""
        self._target_goes_on()
        while self._outside and self._queue.has_room(self._now):
            self._perform(self._queue.append(self._outside.popleft()))
        self._target_goes_on()

    def _target_goes_on(self) -> None:
        if not self._runs(TARGET):
            self._perform(self._queue.next())

    def _source_goes_on(self) -> None:
        if self._own:
            self._source_run(self._own.popleft(), 0)
        else:
            self._perform(self._queue.pull(SOURCE))

    def _source_run(self, task: Task, first: int) -> None:
        self._run(SOURCE, task, first, self._layers, SOURCE_DONE)

    def _run(self, where: str, task: Task, first: int, stop: int, then: int) -> None:
        end = self._now + task.weight * (stop - first)
        self._free[where] = end
        self.spans.append(Span(where, task.id, first, stop, self._now, end))
        heappush(self._events, (end, then, first, task.id))

    def _perform(self, effects: Iterable[QueueEffect]) -> None:
        for effect in effects:
            match effect:
                case Run(task_id, layer):
                    self._run(TARGET, self.tasks[task_id], layer, layer + 1, LAYER_DONE)
                case HandOver(task_id, _, layers_done):
                    self._source_run(self.tasks[task_id], layers_done)
                case Finish(task_id):
                    self.ends[task_id] = self._now
                case Park() | Release() | GiveBack():
                    pass  # a source that was released asks no more, as the queue's phase says
                case _:
                    assert_never(effect)
