"""The listeners of the in-process bus, found by subject: the work for a message grows with the listeners that
hear it, not with the others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, Protocol

from livescale.shared.bus.calls import Reply

Delays = Callable[[str], Sequence[float]]  # after how many seconds a message on a subject arrives, as often as it does
Deliver = Callable[[str, bytes, Mapping[str, str], Reply | None], None]

MOST_FOUND = 65_536  # subjects whose listeners are remembered
ANY, REST = "*", ">"  # of a subscription: any one token, and one or more to the end


class Subscriber(Protocol):
    """Whose a subscription is. Deliveries are kept in `held` where it is not None, as while a process is stopped."""

    held: list[Callable[[], object]] | None


@dataclass(frozen=True, eq=False)
class Listener:
    """One subscription at the broker. Each message goes to one of the listeners with the same `queue`, after the
    broker's `delays` or its own. What only watches is no connection's."""

    wanted: str
    queue: str
    deliver: Deliver
    delays: Delays | None = None
    of: Subscriber | None = None


@dataclass
class SubjectNode:
    """The subscriptions that begin with the same tokens. `here` are those that end with them, each with its number."""

    following: dict[str, "SubjectNode"] = field(default_factory=dict)
    here: dict[Listener, int] = field(default_factory=dict)

    def find(self, tokens: Sequence[str], at: int = 0) -> Iterator[tuple[int, Listener]]:
        """Yield the number and listener of each subscription that matches `tokens` from token `at` on."""
        if at == len(tokens):
            for listener, number in self.here.items():
                yield number, listener
            return
        rest = self.following.get(REST)
        if rest is not None:
            for listener, number in rest.here.items():
                yield number, listener
        for token in (ANY, tokens[at]):
            child = self.following.get(token)
            if child is not None:
                yield from child.find(tokens, at + 1)


class ListenerTable:
    """All listeners. A message goes to those that match its subject, in the order in which they came."""

    def __init__(self) -> None:
        self.listeners: set[Listener] = set()
        self.changes = 0  # how often a listener came or went
        self._root = SubjectNode()
        self._numbers = count()
        self._turn = count()
        self._found: dict[str, FoundListeners] = {}  # by subject, until listeners change

    def add(self, listener: Listener) -> None:
        self._changed()
        self.listeners.add(listener)
        node = self._root
        for token in listener.wanted.split("."):
            node = node.following.setdefault(token, SubjectNode())
        node.here[listener] = next(self._numbers)

    def remove(self, listener: Listener) -> None:
        self._changed()
        self.listeners.remove(listener)
        tokens, path = listener.wanted.split("."), [self._root]
        for token in tokens:
            path.append(path[-1].following[token])
        del path[-1].here[listener]
        for token, parent, node in zip(reversed(tokens), reversed(path[:-1]), reversed(path[1:]), strict=True):
            if node.here or node.following:
                break
            del parent.following[token]

    def choose(self, subject: str) -> Sequence[Listener]:
        """The listeners that get a message on a subject."""
        return self.pick(self.find(subject))

    def find(self, subject: str) -> "FoundListeners":
        """All that match a subject, until there are `changes`."""
        found = self._found.get(subject)
        if found is None:
            if len(self._found) >= MOST_FOUND:
                self._found.clear()
            found = self._found[subject] = self._find(subject)
        return found

    def pick(self, found: "FoundListeners") -> Sequence[Listener]:
        """Those of them that get a message: all without a queue, and one of each queue. Those of a queue take turns."""
        if not found.groups:
            return found.everyone
        picked = {members[next(self._turn) % len(members)] for members in found.groups}
        return [one for one in found.everyone if not one.queue or one in picked]

    def _changed(self) -> None:
        self._found.clear()
        self.changes += 1

    def _find(self, subject: str) -> "FoundListeners":
        matching = sorted(self._root.find(subject.split(".")), key=lambda found: found[0])
        everyone = tuple(listener for _, listener in matching)
        groups: dict[str, list[Listener]] = {}
        for one in everyone:
            if one.queue:
                groups.setdefault(one.queue, []).append(one)
        return FoundListeners(everyone, tuple(groups.values()))


class FoundListeners(NamedTuple):
    """All listeners that match a subject, and those of each queue among them."""

    everyone: Sequence[Listener]
    groups: Sequence[Sequence[Listener]]
