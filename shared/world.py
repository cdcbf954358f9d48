"""The parts of the world an actor may touch besides the bus and links: the clock, fresh ids."""

import asyncio
import time
import uuid
from collections import Counter
from typing import Protocol


class Clock(Protocol):
    """`now()` never goes back and is for durations; `wall()` is seconds since the epoch, for what others read."""

    def now(self) -> float: ...

    def wall(self) -> float: ...


class LoopClock:
    """The running event loop's time: real in a process, virtual in tests and the simulator.

    Under virtual time pass `epoch`, the wall time at which the loop's clock shows zero.
    """

    def __init__(self, epoch: float | None = None) -> None:
        self._epoch = epoch

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return time.time() if self._epoch is None else self._epoch + self.now()


class Ids(Protocol):
    """Fresh ids, `[a-z0-9-]+`."""

    def new(self, prefix: str) -> str: ...


class RandomIds:
    """Unique everywhere."""

    def new(self, prefix: str) -> str:
        return f"{prefix}-{uuid.uuid4().hex[:12]}"


class CountedIds:
    """The same in every run: `req-1`, `req-2`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def new(self, prefix: str) -> str:
        self._counts[prefix] += 1
        return f"{prefix}-{self._counts[prefix]}"
