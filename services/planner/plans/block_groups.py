"""In how many blocks a model is multicast, and in which order (LambdaScale 4.2). Pure."""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil
from typing import TypeVar

# More blocks are not worth it where they save less than this share of the time.
ELBOW = 0.02

T = TypeVar("T")


def choose_count(steps_besides: int, seconds: float, block_seconds: float, most: int) -> int:
    """The elbow: the fewest blocks whose multicast takes hardly longer than with the best number.

    T(b) = (b + steps_besides) * (seconds/b + block_seconds), with `seconds` for all bytes over one link and
    `block_seconds` measured for each block besides.
    """
    times = [(blocks + steps_besides) * (seconds / blocks + block_seconds) for blocks in range(1, most + 1)]
    good = min(times) * (1 + ELBOW)
    return next(index for index, time in enumerate(times) if time <= good) + 1


def transfer_order(things: Sequence[T], ways: int, number: int) -> list[T]:
    """Algorithm 1: chunks of equal size; each of the `ways` sub-groups begins with another one (circular shift)."""
    size = ceil(len(things) / ways)
    chunks = [things[size * way : size * (way + 1)] for way in range(ways)]
    return [thing for way in range(ways) for thing in chunks[(number + way) % ways]]


def group_blocks(sizes: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Blocks in `count` runs of about equal bytes; no run is empty, so there are no more than blocks."""
    count = min(count, len(sizes))
    ends = list(accumulate(sizes))
    runs: list[tuple[int, ...]] = []
    start = 0
    for run in range(1, count + 1):
        last = len(sizes) - (count - run)  # leave one for each of the others
        aim = ends[-1] * run / count
        end = start + 1
        while end < last and abs(ends[end] - aim) <= abs(ends[end - 1] - aim):
            end += 1
        runs.append(tuple(range(start, last if run == count else end)))
        start = end
    return runs
