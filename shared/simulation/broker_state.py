"""What a broker of the in-process bus holds besides listeners: messages on their way, and the key-value store."""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from livescale.shared.bus.codec import decode, encode
from livescale.shared.bus.contract import Disconnected, M
from livescale.shared.messages.message import Message
from livescale.shared.simulation.listeners import FoundListeners, Listener
from livescale.shared.simulation.virtual_time import VirtualTimeLoop

MOST_WAYS = 10_000  # of which it is known when their last message arrives, where no more are in use

Latest = dict[Hashable, float]  # when the last message arrives, by listener
NOBODY = FoundListeners((), ())


@dataclass(slots=True, eq=False)
class Way:
    """From one sender to those who listen on a subject, and to those who watch.

    Who they are is found again after each of the `changes` of listeners: all that a message needs is in one place, as
    thousands of senders do not fit a processor's cache.
    """

    sender: Hashable
    subject: str
    latest: Latest = field(default_factory=dict)
    found: FoundListeners = NOBODY
    watchers: Sequence[Listener] = ()
    changes: int = -1


Said = tuple[Mapping[str, str], Way, bytes]  # the holes of a subject, the way there, and what was sent
NOTHING_SAID: Said = {}, Way(None, ""), b""


class DelayedDeliveries:
    """Delays messages, by the machine's time: it does not matter to those on their way whether their sender sleeps.

    Those that arrive at one moment arrive in the order of sending, as timers of virtual time do.
    """

    def __init__(self) -> None:
        self._ways: dict[Hashable, Way] = {}  # by sender and subject; old ones until forgotten
        self._most = MOST_WAYS  # before old ones are forgotten
        self._loop: Any = None  # of virtual time or not
        self._is_virtual = False

    def way(self, sender: Hashable, subject: str) -> Way:
        """The way of what `sender` sends on `subject`."""
        found = self._ways.get((sender, subject))
        if found is None:
            found = Way(sender, subject)
            self.keep(found)
        return found

    def keep(self, way: Way) -> None:
        """Know a way from now on, also one that was forgotten since it was last used."""
        key = way.sender, way.subject
        if key not in self._ways and len(self._ways) >= self._most:
            self._forget()
        self._ways[key] = way

    def add_all(
        self, times: Sequence[float], arrive: Callable[[], None], ways: Latest | None = None, listener: Hashable = None
    ) -> None:
        """Call `arrive` after each of so many seconds. The first is not before what was added earlier for the same
        listener of these `ways`; copies are on none."""
        now = self._loop.now if self._is_virtual else self._now()
        for seconds in times:
            latest = -inf if ways is None else ways.get(listener, -inf)
            if seconds <= 0 and latest < now:
                arrive()
                ways = None
                continue
            at = now + seconds
            if at < latest:
                at = latest
            if ways is not None:
                ways[listener] = at
                ways = None
            if self._is_virtual:
                self._loop.call_in_no_process(at, arrive)
            else:
                self._loop.call_at(at, arrive)

    def _now(self) -> float:
        if self._loop is None:  # asking for it each time is a system call
            self._loop = asyncio.get_running_loop()
            self._is_virtual = isinstance(self._loop, VirtualTimeLoop)
        now: float = self._loop.now if self._is_virtual else self._loop.time()
        return now

    def _forget(self) -> None:
        """Forget the ways on which everything has arrived."""
        now = self._now()
        for key, way in list(self._ways.items()):
            if max(way.latest.values(), default=inf) < now:
                way.changes = -1  # whoever uses it has it kept again
                del self._ways[key]
        self._most = max(MOST_WAYS, 2 * len(self._ways))


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
