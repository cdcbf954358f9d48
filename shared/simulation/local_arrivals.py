"""What is on its way on the in-process bus, and in which order it arrives."""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from itertools import count


class Arrivals:
    """Of what arrives at one moment that comes first which was sent first: the timers of a loop keep no such order."""

    def __init__(self) -> None:
        self._coming: list[tuple[float, int, Hashable, Callable[[], None]]] = []
        self._numbers = count()
        self._on_way: Counter[Hashable] = Counter()
        self._latest: dict[Hashable, float] = {}  # when the last one that is on this way arrives

    def add(self, seconds: float, arrive: Callable[[], None], way: Hashable = None) -> None:
        """After so many seconds; of one `way` none before those that were added earlier."""
        if seconds <= 0 and not self._on_way[way]:
            arrive()
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if way is not None:
            at = self._latest[way] = max(at, self._latest.get(way, at))
            self._on_way[way] += 1
        heappush(self._coming, (at, next(self._numbers), way, arrive))
        loop.call_at(at, self._next)

    def _next(self) -> None:
        """A timer for each: whichever comes, the first is due."""
        _, _, way, arrive = heappop(self._coming)
        if way is not None:
            self._on_way[way] -= 1
            if not self._on_way[way]:
                del self._on_way[way], self._latest[way]
        arrive()
