"""What a broker of the in-process bus holds besides listeners: messages on their way, and the key-value store."""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from itertools import count

from livescale.shared.bus.codec import decode, encode
from livescale.shared.bus.contract import Disconnected, M
from livescale.shared.messages.message import Message


class DelayedDeliveries:
    """Delays messages.

    Those that arrive at one moment arrive in the order of sending, unlike timers of an event loop.
    """

    def __init__(self) -> None:
        self._coming: list[tuple[float, int, Hashable, Callable[[], None]]] = []
        self._numbers = count()
        self._on_way: Counter[Hashable] = Counter()
        self._latest: dict[Hashable, float] = {}  # when the last one that is on this way arrives

    def add(self, seconds: float, arrive: Callable[[], None], way: Hashable = None) -> None:
        """Call `arrive` after so many seconds, but not before what was added earlier for the same `way`."""
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
        """Deliver the earliest message. There is a timer for each, and whichever fires, the earliest is due."""
        _, _, way, arrive = heappop(self._coming)
        if way is not None:
            self._on_way[way] -= 1
            if not self._on_way[way]:
                del self._on_way[way], self._latest[way]
        arrive()


class LocalKeyValue:
    """The view of one connection on the broker's store, which survives `down()`."""

    def __init__(self, values: dict[str, bytes], connected: Callable[[], bool]) -> None:
        self._all = values
        self._connected = connected

    async def put(self, key: str, value: Message) -> None:
        self._values[key] = encode(value, json=True)

    async def get(self, key: str, type: type[M]) -> M | None:
        data = self._values.get(key)
        if data is None:
            return None
        value: M = decode(type, data, json=True)
        return value

    async def delete(self, key: str) -> None:
        self._values.pop(key, None)

    async def list(self, prefix: str, type: type[M]) -> dict[str, M]:
        within = prefix and prefix + "."
        return {
            key: decode(type, data, json=True) for key, data in sorted(self._values.items()) if key.startswith(within)
        }

    @property
    def _values(self) -> dict[str, bytes]:
        if not self._connected():
            raise Disconnected("the bus is down")
        return self._all
