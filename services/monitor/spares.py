"""The spare workers that were heard of, counted as they are heard: how many fit is known without looking at each. Pure.

`now` never goes back.
"""

from collections import Counter
from collections.abc import Collection


class SpareWorkers:
    """Spare workers by their arenas, in the order in which they were last heard."""

    def __init__(self, stale_seconds: float) -> None:
        self._stale_seconds = stale_seconds
        self._heard: dict[str, tuple[int, float]] = {}  # arena in bytes, and when
        self._arenas = Counter[int]()
        self._parked: dict[str, str] = {}  # the versions of those that keep parameters

    def heard(self, id: str, arena_bytes: int, now: float, parked: str | None = None) -> None:
        """Note that a spare worker, with this much memory for parameters, was heard now. `parked` is the version whose
        parameters it keeps."""
        if parked is None:
            self._parked.pop(id, None)
        else:
            self._parked[id] = parked
        known = self._heard.pop(id, None)
        self._heard[id] = (arena_bytes, now)  # the last one now
        if known is None:
            self._arenas[arena_bytes] += 1
        elif known[0] != arena_bytes:
            self._uncount(known[0])
            self._arenas[arena_bytes] += 1

    def remove(self, id: str) -> None:
        """Forget a worker, which need not be known."""
        self._parked.pop(id, None)
        known = self._heard.pop(id, None)
        if known is not None:
            self._uncount(known[0])

    def _uncount(self, arena_bytes: int) -> None:
        self._arenas[arena_bytes] -= 1
        if not self._arenas[arena_bytes]:
            del self._arenas[arena_bytes]

    def count(self, least_bytes: int, taken: Collection[str], now: float) -> int:
        """How many were heard lately, have an arena of `least_bytes` or more, and are not among those `taken`."""
        fitting = sum(number for arena_bytes, number in self._arenas.items() if arena_bytes >= least_bytes)
        for id, (arena_bytes, at) in self._heard.items():
            if self._is_fresh(at, now):
                break
            fitting -= arena_bytes >= least_bytes and id not in taken
        known = (self._heard[id] for id in taken if id in self._heard)
        return fitting - sum(arena_bytes >= least_bytes for arena_bytes, _ in known)

    def count_parked(self, version: str, taken: Collection[str], now: float) -> int:
        """How many were heard lately, keep the parameters of this version, and are not among those `taken`."""
        having = (id for id, kept in self._parked.items() if kept == version and id not in taken)
        return sum(self._is_fresh(self._heard[id][1], now) for id in having)

    def _is_fresh(self, at: float, now: float) -> bool:
        return now - at <= self._stale_seconds
