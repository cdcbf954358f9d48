"""A source and a target stepped through time unit by unit, with nothing of the policy's own code: what the integer
program's optimum and the rehearsal are checked against."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from livescale.services.worker.live.policy import LiveTask


@dataclass
class Row:
    """A batch of whole numbers. `quota`: how many layers the target runs."""

    arrival: int
    weight: int
    quota: int
    units_on_target: int = 0
    units_on_source: int = 0


def ends_with(batches: Sequence[tuple[int, int]], ready: Sequence[int], quotas: Sequence[int]) -> list[int]:
    """When each (arrival, weight) ends. In each unit of time the target works on the earliest batch that has a loaded
    layer of its quota left, and the source on its current one once the target is through with that."""
    rows = [Row(arrival, weight, quota) for (arrival, weight), quota in zip(batches, quotas, strict=True)]
    ends: list[int] = []
    now = min(row.arrival for row in rows)
    while len(ends) < len(rows):
        current = rows[len(ends)]
        if current.arrival <= now and current.units_on_target == current.quota * current.weight:
            left = (len(ready) - current.quota) * current.weight - current.units_on_source
            if left == 0:
                ends.append(now)
                continue
            current.units_on_source += 1
        step_target(rows, ready, now)
        now += 1
    return ends


def step_target(rows: Sequence[Row], ready: Sequence[int], now: int) -> None:
    for row in rows:
        layer = row.units_on_target // row.weight
        if row.arrival <= now and layer < row.quota and ready[layer] <= now:
            row.units_on_target += 1
            return


def best_latency(batches: Sequence[tuple[int, int]], ready: Sequence[int]) -> float:
    """The least mean over all ways to share the layers."""
    arrivals = sum(arrival for arrival, _ in batches)
    shares = itertools.product(range(len(ready) + 1), repeat=len(batches))
    return min(sum(ends_with(batches, ready, quotas)) - arrivals for quotas in shares) / len(batches)


BATCHES = st.lists(st.tuples(st.integers(-5, 12), st.integers(1, 3)), min_size=1, max_size=3).map(sorted)


LOADS = st.lists(st.integers(0, 6), min_size=1, max_size=4)


def tasks_of(batches: list[tuple[int, int]]) -> list[LiveTask]:
    return [LiveTask(str(number), float(arrival), float(weight)) for number, (arrival, weight) in enumerate(batches)]


def ready_after(loads: list[int]) -> list[int]:
    return [sum(loads[: layer + 1]) for layer in range(len(loads))]
