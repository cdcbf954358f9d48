"""Requests that wait for a router: none is in office just now, or none can be reached."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Gauge

from livescale.services.gateway.errors import queue_full


class Holding:
    """At most `most` new requests; those that were accepted before always may."""

    def __init__(self, shown: Gauge, most: int) -> None:
        self._shown = shown
        self._most = most
        self._held = 0

    @contextmanager
    def hold(self, *, is_new: bool) -> Iterator[None]:
        """Raises ApiError 429 where a new one is one too many."""
        if is_new and self._held >= self._most:
            raise queue_full(f"{self._held} requests wait already for the service to be back.")
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        self._held += more
        self._shown.set(self._held)
