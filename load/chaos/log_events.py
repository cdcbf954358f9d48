"""Counts events in the logs of a system's processes: a counter of their own would die with them."""

from collections import Counter
from collections.abc import Container

from livescale.services.supervisor.processes import Echo

RESUMED = "request_lost"
TOOK_OFFICE = "router_takes_office"
HANDED_OVER = "request_taken"


class LogEvents:
    """`echo` passes lines on to `log`, and counts the `events` in them."""

    def __init__(self, log: Echo, events: Container[str] = (RESUMED, TOOK_OFFICE, HANDED_OVER)) -> None:
        self._log = log
        self._events = events
        self.counts: Counter[str] = Counter()

    def echo(self, name: str, line: str) -> None:
        self.counts.update(word for word in line.split() if word in self._events)
        self._log(name, line)
