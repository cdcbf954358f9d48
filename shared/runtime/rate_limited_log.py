"""Logs of what may happen thousands of times a second: one line per event and subject every few seconds."""

from collections import Counter
from collections.abc import Callable

import structlog

PERIOD_SECONDS = 5.0
KEYS = 1_000  # subjects remembered; a flood of new ones starts over


class RateLimitedLog:
    """Logs an event of one subject at most once in `PERIOD_SECONDS`, and counts the others."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._last: dict[tuple[str, str], float] = {}
        self._silent: Counter[tuple[str, str]] = Counter()
        self._log = structlog.get_logger()

    def warning(self, event: str, subject: str, **fields: object) -> None:
        """Log, unless this event of this subject was logged just now; `more` counts those left out since."""
        key, now = (event, subject), self._now()
        if now - self._last.get(key, float("-inf")) < PERIOD_SECONDS:
            self._silent[key] += 1
            return
        if len(self._last) >= KEYS:
            self._last.clear()
            self._silent.clear()
        self._last[key] = now
        self._log.warning(event, subject=subject, more=self._silent.pop(key, 0), **fields)
