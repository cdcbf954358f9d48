"""The best that a source and a target can do while parameters arrive: the integer program of BlitzScale 5.2, equation
(1), solved with HiGHS. Pure.

C3 is not as it is printed, which leaves the paper's own example without a solution, but as it is meant: at the start of
each layer its load time has passed. That is the rule of `windows`, of which C2 is the case of the first time. Starts on
the source are variables, so tasks may arrive at any time, and where layers and loads do not end together the source may
wait for a layer. A layer may be interrupted, so that elsewhere than in whole layer times the optimum is a bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf

from livescale.services.worker.live.policy import LiveTask
from livescale.services.worker.live.windows import Pair, Windows, greedy, windows


class Forecast:
    """When missing layers will be here, and how long one takes, if this load goes on as it was seen to go.

    It goes by the load's pace in bytes, and by the seconds that each row of a layer took.
    """

    def __init__(self, layer_bytes: Sequence[int], began: float) -> None:
        """`layer_bytes` are the sizes of the layers' blocks, in the order in which they arrive. `began` is when the
        load did.
        """
        self._ends = list(accumulate(layer_bytes))
        self._began = began
        self._seen = (0, began)  # layers that were here, and since when
        self._rows = 0
        self._seconds = 0.0

    def arrived(self, layers: int, now: float) -> None:
        """Note that so many layers are here at this time, from the first on without a gap."""
        if layers > self._seen[0]:
            self._seen = (layers, now)

    def ran(self, rows: int, seconds: float) -> None:
        """Note that one layer of so many rows took so many seconds."""
        self._rows += rows
        self._seconds += seconds

    def layer_seconds(self, rows: int) -> float | None:
        """Return how long a layer of so many rows takes, or None before any was run."""
        return rows * self._seconds / self._rows if self._seconds > 0 else None

    def ready(self, now: float) -> list[float] | None:
        """Return in how many seconds from now each layer is here, 0 for those that are. None before any is."""
        layers, at = self._seen
        if not layers:
            return None
        seconds_per_byte = (at - self._began) / self._ends[layers - 1]
        coming = (max(0.0, self._began + end * seconds_per_byte - now) for end in self._ends[layers:])
        return [0.0] * layers + list(coming)


TOLERANCE = 1e-6  # HiGHS's own
SOLVED, TIME_IS_UP = 0, 1  # its answers


@dataclass(frozen=True)
class Optimum:
    """For each task, in order: how many layers the target runs, and when the source ends the rest of them.

    Unless it is `proven` it is only the best that was found.
    """

    mean_latency: float
    on_target: tuple[int, ...]
    ends: tuple[float, ...]
    proven: bool


def solve(
    tasks: Sequence[LiveTask], ready: Sequence[float], limit_seconds: float = inf, relative_gap: float = 0.0
) -> Optimum:
    """Return how source and target share the layers of these tasks with the least mean latency.

    Both take tasks in order of arrival. The source is free from the first arrival on, and `ready` is when each layer's
    block is there. HiGHS stops at the limit, and where it has shown that no solution is better by more than the gap.

    Raises ValueError without tasks, for a weight that is not above zero, and where blocks become ready in another order
    than that of the layers.
    """
    if not tasks or min(task.weight for task in tasks) <= 0:
        raise ValueError("there is an optimum of at least one task, and of weights above zero")
    if not ready or list(ready) != sorted(ready):
        raise ValueError(f"layers become ready in their order, not at {list(ready)}")
    # Times from the first arrival on: HiGHS's tolerances are absolute, and it fails with starts below zero.
    origin = min(task.arrival for task in tasks)
    pair = Pair([replace(task, arrival=task.arrival - origin) for task in tasks], [at - origin for at in ready])
    on_target, proven = _best(pair, limit_seconds, relative_gap)
    ends = pair.ends(on_target)
    latency = sum(end - task.arrival for end, task in zip(ends, pair.tasks, strict=True)) / len(ends)
    return Optimum(latency, tuple(on_target), tuple(origin + end for end in ends), proven)


def _best(pair: Pair, limit_seconds: float, relative_gap: float) -> tuple[list[int], bool]:
    """Return the layers on the target, and whether nothing is better. Any numbers of them are a plan, as the source
    waits.
    """
    program, best = _Program(pair, windows(pair)), greedy(pair)[0]
    while (found := program.solve(limit_seconds, relative_gap)) is not None:
        if found.proven and not program.forbids(found.starts, found.on_target):
            return found.on_target, True
        best = min(best, found.on_target, key=lambda on_target: sum(pair.ends(on_target)))
        if not found.proven:
            break
    return best, False


@dataclass(frozen=True)
class _Found:
    """Starts on the source and layers on the target. Unless the solution is `proven` there may be better ones."""

    starts: list[float]
    on_target: list[int]
    proven: bool


@dataclass
class _Sum:
    """A sum of variables, by column, and a constant."""

    factors: dict[int, float] = field(default_factory=dict)
    constant: float = 0.0

    def plus(self, factor: float, other: "_Sum") -> None:
        self.constant += factor * other.constant
        for column, value in other.factors.items():
            self.factors[column] = self.factors.get(column, 0.0) + factor * value


@dataclass
class _Rows:
    """Rows of a sparse matrix, and between what each has to be."""

    values: list[float] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=lambda: [0])
    least: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)

    def add(self, total: _Sum, least: float, most: float = inf) -> None:
        self.columns += total.factors.keys()
        self.values += total.factors.values()
        self.stops.append(len(self.columns))
        self.least.append(least - total.constant)
        self.most.append(most - total.constant)


class _Program:
    """The integer program as far as its rows were demanded.

    Its variables are, of each task, its start on the source, and for each layer of its window how many layers from that
    one on the target runs. For the first of all that is T of the paper.
    """

    def __init__(self, pair: Pair, limits: Windows) -> None:
        self._pair, self._limits = pair, limits
        self._count = len(pair.tasks)
        self._columns: dict[tuple[int, int], int] = {}
        self._highest = [inf] * self._count
        for task, (least, most) in enumerate(zip(limits.least, limits.most, strict=True)):
            for layer in range(least, most):
                self._columns[task, layer] = len(self._highest)
                self._highest.append(most - layer)
        self._rows = _Rows()
        self._demanded: set[tuple[int, float]] = set()
        for task in range(self._count):
            self._in_order(task)
            self._after_the_last(task)
            self._demand(task, pair.times[0])
            if limits.most[task]:
                self._demand(task, pair.release(task, limits.most[task] - 1))

    def solve(self, limit_seconds: float, relative_gap: float) -> _Found | None:
        """Return the best with the rows so far, or None where nothing was found in time."""
        # Imported here: it takes a tenth of a second, and only this mode of live scaling has a use for it.
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        rows, columns = self._rows, len(self._highest)
        matrix = csr_array((rows.values, rows.columns, rows.stops), shape=(len(rows.least), columns))
        objective = [1.0] * self._count + [0.0] * (columns - self._count)
        for task in range(self._count):
            for column in self._from(task, 0).factors:
                objective[column] = -self._pair.tasks[task].weight
        # Presolve takes longer than it saves here, and then HiGHS may write a line of its own to stdout.
        found = milp(
            objective,
            integrality=[0] * self._count + [1] * (columns - self._count),
            bounds=Bounds([*self._limits.starts, *[0.0] * (columns - self._count)], self._highest),
            constraints=LinearConstraint(matrix, rows.least, rows.most),
            options={"mip_rel_gap": relative_gap, "presolve": False, "time_limit": limit_seconds},
        )
        if found.x is None and found.status != TIME_IS_UP:
            raise RuntimeError(f"HiGHS found no optimum: {found.message}")
        if found.x is None:
            return None
        chosen = [self._from(task, 0) for task in range(self._count)]
        on_target = [round(sum(found.x[column] for column in each.factors) + each.constant) for each in chosen]
        return _Found([float(found.x[task]) for task in range(self._count)], on_target, found.status == SOLVED)

    def forbids(self, starts: Sequence[float], on_target: Sequence[int]) -> bool:
        """Demand what this solution breaks, as few of all rows ever matter. Returns whether there was anything."""
        broken = []
        for task, start in enumerate(starts):
            through, since = self._pair.needed(on_target[: task + 1])
            if through > start + TOLERANCE:
                broken.append(self._demand(task, since))
        return any(broken)

    def _from(self, task: int, layer: int) -> _Sum:
        """Return how many layers from this one on the target runs of the task."""
        least, most = self._limits.least[task], self._limits.most[task]
        known = max(0, least - layer)
        if max(layer, least) >= most:
            return _Sum(constant=known)
        return _Sum({self._columns[task, max(layer, least)]: 1.0}, known)

    def _in_order(self, task: int) -> None:
        """Demand that the target runs no layer without the one before it."""
        least, most = self._limits.least[task], self._limits.most[task]
        if least < most:
            self._rows.add(self._runs(task, least), 0.0, 1.0)
        for layer in range(least, most - 1):
            row = self._runs(task, layer)
            row.plus(-1.0, self._runs(task, layer + 1))
            self._rows.add(row, 0.0)

    def _runs(self, task: int, layer: int) -> _Sum:
        """Return whether the target runs this layer of the task, as a sum that is 0 or 1."""
        total = self._from(task, layer)
        total.plus(-1.0, self._from(task, layer + 1))
        return total

    def _after_the_last(self, task: int) -> None:
        """Demand C1, and the source's order: no start before the end of the task before it."""
        if task:
            row = _Sum({task: 1.0, task - 1: -1.0})
            row.plus(self._pair.tasks[task - 1].weight, self._from(task - 1, 0))
            self._rows.add(row, self._pair.source_seconds(task - 1, 0))

    def _demand(self, task: int, time: float) -> bool:
        """Demand C2 and C3 for the layers that can start from this time on. Returns whether that is new.

        Once the last of them that the target runs of this task is loaded, what the earlier tasks and this one need fits
        before the start.
        """
        stop = self._pair.first(task, time)
        if (task, time) in self._demanded or stop >= self._limits.most[task]:
            return False
        self._demanded.add((task, time))
        row, before = _Sum({task: 1.0}), self._pair.began
        for earlier in range(task + 1):
            row.plus(-self._pair.tasks[earlier].weight, self._from(earlier, self._pair.first(earlier, time)))
        for layer in range(stop + 1):
            # The times of the layers that are run add up to that of the last one: tighter than a product with it.
            at = min(time, self._pair.release(task, layer))
            row.plus(before - at, self._runs(task, layer))
            before = at
        self._rows.add(row, self._pair.began)
        return True
