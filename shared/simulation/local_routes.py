"""Who listens to what on the in-process bus, in a fixed order."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

from livescale.shared.bus.addressing import matches
from livescale.shared.bus.serving import Reply

Deliver = Callable[[str, bytes, Mapping[str, str], Reply | None], None]


@dataclass(frozen=True, eq=False)
class Listener:
    """One subscription at the broker. Of the listeners with one `queue`, one gets each message."""

    wanted: str
    queue: str
    deliver: Deliver


class Routes:
    """From each subject that was ever sent to, its listeners in the order in which they came."""

    def __init__(self) -> None:
        self._listeners: dict[Listener, None] = {}
        self._routes: dict[str, list[Listener]] = {}
        self._turn = count()

    def __contains__(self, listener: Listener) -> bool:
        return listener in self._listeners

    def add(self, listener: Listener) -> None:
        self._listeners[listener] = None
        for subject, route in self._routes.items():
            if matches(listener.wanted, subject):
                route.append(listener)

    def remove(self, listener: Listener) -> None:
        del self._listeners[listener]
        for route in self._routes.values():
            if listener in route:
                route.remove(listener)

    def choose(self, subject: str) -> list[Listener]:
        """Everybody, and of each queue one. They take turns instead of chance: the same in every run."""
        if subject not in self._routes:
            self._routes[subject] = [one for one in self._listeners if matches(one.wanted, subject)]
        everyone = list(self._routes[subject])
        groups: dict[str, list[Listener]] = {}
        for one in everyone:
            if one.queue:
                groups.setdefault(one.queue, []).append(one)
        picked = [members[next(self._turn) % len(members)] for members in groups.values()]
        return [one for one in everyone if not one.queue or one in picked]
