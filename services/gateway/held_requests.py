"""The requests that wait for a router, while none can be reached."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Gauge

from livescale.services.gateway.errors import queue_full


class HeldRequests:
    """The requests that wait for a router, as none can be reached: at most `most` new ones. Requests that were accepted
    before are always held."""

    def __init__(self, shown: Gauge, most: int) -> None:
        self._shown = shown
        self._most = most
        self._held = 0

    @contextmanager
    def hold(self, *, is_new: bool) -> Iterator[None]:
        """Hold one request inside the block. Raises ApiError 429 where a new request is one too many."""
        if is_new and self._held >= self._most:
            raise queue_full(f"{self._held} requests already wait until a router answers; try again later.")
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        self._held += more
        self._shown.set(self._held)
