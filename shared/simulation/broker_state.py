"""What a broker of the in-process bus holds besides listeners: messages on their way, and the key-value store."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Any

from livescale.shared.bus.codec import decode, encode
from livescale.shared.bus.contract import Disconnected, M
from livescale.shared.messages.message import Message
from livescale.shared.simulation.virtual_time import VirtualTimeLoop

MOST_WAYS = 10_000  # of which it is known when their last message arrives, where no more are in use


class DelayedDeliveries:
    """Delays messages, by the machine's time: it does not matter to those on their way whether their sender sleeps.

    Those that arrive at one moment arrive in the order of sending, as timers of virtual time do.
    """

    def __init__(self) -> None:
        self._latest: dict[Hashable, float] = {}  # when the last message of each way arrives; old ones until forgotten
        self._before_forgetting = MOST_WAYS  # messages
        self._loop: Any = None  # of virtual time or not
        self._is_virtual = False

    def add_all(self, times: Sequence[float], arrive: Callable[[], None], way: Hashable = None) -> None:
        """Call `arrive` after each of so many seconds. The first is not before what was added earlier for the same
        `way`; copies are on none."""
        loop = self._loop
        if loop is None:  # asking for it each time is a system call
            loop = self._loop = asyncio.get_running_loop()
            self._is_virtual = isinstance(loop, VirtualTimeLoop)
        now: float = loop.now if self._is_virtual else loop.time()
        for seconds in times:
            latest = -inf if way is None else self._latest.get(way, -inf)
            if seconds <= 0 and latest < now:
                arrive()
                way = None
                continue
            at = now + seconds
            if at < latest:
                at = latest
            if way is not None:
                self._latest[way] = at
                self._before_forgetting -= 1
                if not self._before_forgetting:
                    self._forget(now)
                way = None
            if self._is_virtual:
                loop.call_in_no_process(at, arrive)
            else:
                loop.call_at(at, arrive)

    def _forget(self, now: float) -> None:
        """Forget the ways on which everything has arrived."""
        self._latest = {way: at for way, at in self._latest.items() if at >= now}
        self._before_forgetting = max(MOST_WAYS, len(self._latest))


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
