"""The bounds between which the optimum's number of layers lies, for each task, so that an integer program need not try
others. Pure.

Layers of a task can start on the target from `max(arrival, ready[layer])` on. Consider what the target has to run, from
a time t on, of the tasks up to i. It has to fit between t and the start of task i on the source. If the target always
runs the earliest task with a layer loaded, every start for which that holds for all t can be reached.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, inf

from livescale.services.worker.live.policy import LiveTask

EPSILON = 1e-9


class Pair:
    """One source and one target: their `tasks` in order, and when each layer's block is `ready` on the target."""

    def __init__(self, tasks: Sequence[LiveTask], ready: Sequence[float]) -> None:
        self.tasks = sorted(tasks, key=lambda task: task.order)
        self.ready, self.layers = ready, len(ready)
        self.began = min(task.arrival for task in tasks)
        #: the times from which on the target's work is counted
        self.times = sorted({max(task.arrival, at) for task in tasks for at in ready})

    def first(self, task: int, time: float) -> int:
        """Return the first of a task's layers that can start at this time or later."""
        return 0 if self.tasks[task].arrival >= time else bisect_left(self.ready, time)

    def release(self, task: int, layer: int) -> float:
        """Return when this layer of the task can start on the target at the earliest."""
        return max(self.tasks[task].arrival, self.ready[layer])

    def needed(self, on_target: Sequence[int]) -> tuple[float, float]:
        """Return when the target is through with these layers of the first tasks, at the earliest, if the last task
        ends it.

        The second value is the time from which on it has no pause until then.
        """
        last = len(on_target) - 1
        if not on_target[last]:
            return self.began, self.began
        until = self.release(last, on_target[last] - 1)
        return max((time + self._work(on_target, time), time) for time in self.times if time <= until)

    def ends(self, on_target: Sequence[int]) -> list[float]:
        """Return when each task ends on the source, which takes them in order and waits for the target if it must."""
        ends, free = [], self.began
        for number, task in enumerate(self.tasks):
            start = max(free, task.arrival, self.needed(on_target[: number + 1])[0])
            free = start + self.source_seconds(number, on_target[number])
            ends.append(free)
        return ends

    def source_seconds(self, task: int, on_target: int) -> float:
        """Return how long the source takes for the layers that the target leaves to it."""
        return self.tasks[task].weight * (self.layers - on_target)

    def _work(self, on_target: Sequence[int], time: float) -> float:
        return sum(
            self.tasks[task].weight * max(0, count - self.first(task, time)) for task, count in enumerate(on_target)
        )

    def alone(self, task: int) -> Iterator[float]:
        """Yield when the target would be through with 0, 1, 2, .. layers of this task, if there were no other."""
        through = -inf
        yield through
        for layer in range(self.layers):
            through = max(through, self.release(task, layer)) + self.tasks[task].weight
            yield through


@dataclass(frozen=True)
class Windows:
    """Bounds for each task: the earliest start on the source, and the least and the most layers on the target."""

    starts: tuple[float, ...]
    least: tuple[int, ...]
    most: tuple[int, ...]


def greedy(pair: Pair) -> tuple[list[int], float]:
    """Return a good solution: of each task its layers on the target, and the sum of the ends.

    Each task in turn leaves with as many layers as the target can have done when the source is free.
    """
    chosen: list[int] = []
    free, total = pair.began, 0.0
    for number, task in enumerate(pair.tasks):
        start = max(free, task.arrival)
        count = bisect_left(
            range(1, pair.layers + 1), True, key=lambda count: pair.needed([*chosen, count])[0] > start + EPSILON
        )
        chosen.append(count)
        free = start + pair.source_seconds(number, count)
        total += free
    return chosen, total


def windows(pair: Pair) -> Windows:
    """Return the bounds within which every solution lies that is no worse than the greedy one.

    A task that ends late leaves the others less than they need, if the sum of the ends is to be that of the greedy
    solution.
    """
    starts, ends = _earliest(pair)
    total = greedy(pair)[1]
    pairs = _pairs(pair, ends)
    before, after = _sums(ends, pairs), _sums(ends[::-1], [0.0, *pairs[:0:-1]])[::-1]
    latest = [total - before[number] - after[number + 1] for number in range(len(ends))]
    least, most = [], []
    for number, task in enumerate(pair.tasks):
        late = min(latest[number:]) + EPSILON
        fewest = pair.layers - (late - starts[number]) / task.weight
        least.append(max(0, ceil(fewest)))
        most.append(sum(t + pair.source_seconds(number, k) <= late for k, t in enumerate(pair.alone(number))) - 1)
    return Windows(tuple(starts), tuple(least), tuple(most))


def _earliest(pair: Pair) -> tuple[list[float], list[float]]:
    """Each task's start and end on the source, if the target worked for this task alone."""
    starts, ends, free = [], [], pair.began
    for number, task in enumerate(pair.tasks):
        starts.append(max(free, task.arrival))
        free = min(
            max(starts[-1], through) + pair.source_seconds(number, count)
            for count, through in enumerate(pair.alone(number))
        )
        ends.append(free)
    return starts, ends


def _pairs(pair: Pair, ends: Sequence[float]) -> list[float]:
    """Return lower bounds for the ends of each task and of the one before it, together. By those times the source can
    have run only what fits until the former end, and the target what fits until the latter."""
    work = accumulate(task.weight * pair.layers for task in pair.tasks)
    return [pair.began + each + min(pair.times[0], before) for each, before in zip(work, [inf, *ends], strict=False)]


def _sums(ends: Sequence[float], pairs: Sequence[float]) -> list[float]:
    """Return lower bounds for the sums of the first 0, 1, 2, .. ends, counted one by one or by two."""
    sums = [0.0]
    for number, end in enumerate(ends):
        by_two = sums[-2] + pairs[number] if number else -inf
        sums.append(max(sums[-1] + end, by_two))
    return sums
