"""Measures again what a core of changing speed has spoilt: some run AMX at a third of its speed for seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

ATTEMPTS = 4
STEADY = 1.1  # times that the core may be as fast after as before, or the other way round

T = TypeVar("T")


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """What was measured, and how fast the core was before and after it."""

    before: float
    measured: T
    after: float

    @property
    def change(self) -> float:
        return max(self.before, self.after) / min(self.before, self.after)


def steadiest(speed: Callable[[], float], measure: Callable[[], T], tell: Callable[[str], None]) -> Attempt[T]:
    """Measure until the core is as fast after it as before, a few times at most. Returns the steadiest attempt."""
    attempts: list[Attempt[T]] = []
    before = speed()
    while True:
        attempts.append(Attempt(before, measure(), before := speed()))
        last = attempts[-1].change
        if last <= STEADY or len(attempts) == ATTEMPTS:
            return min(attempts, key=lambda one: one.change)
        tell(f"the core's speed changed {last:.1f} times meanwhile: again")
