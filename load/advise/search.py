"""The search for the smallest pool of workers, and the fewest instances, that hold. Pure but for what is tried.

It takes for granted that more never hurts: what holds with some workers, or with some instances from the start, holds
with more. So that each step halves what is left.
"""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar


class PoolChoice(NamedTuple):
    """Workers, and how many instances each model has at least."""

    workers: int
    least: int


class TriedChoice(Protocol):
    """What came of one choice; `holds`: its objectives were met."""

    @property
    def holds(self) -> bool: ...


T = TypeVar("T", bound=TriedChoice)


class Found(NamedTuple, Generic[T]):
    """The choice that was found, what came of it, and of all that were tried; None if not even the most holds."""

    choice: PoolChoice | None
    tried: dict[PoolChoice, T]


def first_that_holds(values: Sequence[int], holds: Callable[[int], bool]) -> int | None:
    """The first of some values from which on it holds; None if it does not hold with the last."""
    if not values or not holds(values[-1]):
        return None
    low, high = 0, len(values) - 1  # it holds with values[high]
    while low < high:
        middle = (low + high) // 2
        if holds(values[middle]):
            high = middle
        else:
            low = middle + 1
    return values[high]


def search(pools: Sequence[int], most_of: Callable[[int], int], attempt: Callable[[PoolChoice], T]) -> Found[T]:
    """Find the smallest pool, then the fewest instances with which it holds. `most_of` a pool is how many each model
    can have in it."""
    tried = dict[PoolChoice, T]()

    def holds(choice: PoolChoice) -> bool:
        if choice not in tried:
            tried[choice] = attempt(choice)
        return tried[choice].holds

    workers = first_that_holds(pools, lambda pool: holds(PoolChoice(pool, most_of(pool))))
    if workers is None:
        return Found(None, tried)
    least = first_that_holds(range(most_of(workers) + 1), lambda count: holds(PoolChoice(workers, count)))
    assert least is not None  # the most did hold
    return Found(PoolChoice(workers, least), tried)
