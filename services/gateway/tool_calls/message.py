"""What an answer's text turns out to be: content, reasoning and calls of tools. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

# By tool and parameter, the JSON types that the parameter's schema allows; none where it does not say.
ParameterTypes = Mapping[str, Mapping[str, frozenset[str]]]


@dataclass(frozen=True)
class CallDelta:
    """A piece of one call: the first has the call's `id` and the tool's `name`, and all of them together the
    arguments."""

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass
class Delta:
    """What a piece of text adds to an answer: content, reasoning, calls."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list)

    def open_call(self, index: int, id: str, name: str) -> None:
        """Begin a call with its id and name; its arguments follow in later pieces."""
        self.calls.append(CallDelta(index, id, name, ""))

    def add_arguments(self, index: int, text: str) -> None:
        """Add a piece to the arguments of a call that was begun."""
        if text:
            self.add_call(CallDelta(index, None, None, text))

    def add_call(self, call: CallDelta) -> None:
        """Go on with a call. A client gets one piece of a call at a time."""
        last = self.calls[-1] if self.calls else None
        if last is not None and last.index == call.index:
            self.calls[-1] = replace(last, arguments=last.arguments + call.arguments)
        else:
            self.calls.append(call)


class Calls:
    """The calls of one answer so far. `types` says which tools there are, and `ids` what the calls are called.

    `name` is that of the last call, or of one that is about to begin.
    """

    def __init__(self, types: ParameterTypes, ids: Callable[[int], str], name: str = "") -> None:
        self.types = types
        self._ids = ids
        self.count = 0
        self.name = name

    def open(self, delta: Delta, name: str) -> None:
        """Begin the next call of the message, under an id of its own."""
        self.name = name
        delta.open_call(self.count, self._ids(self.count), name)
        self.count += 1

    def add(self, delta: Delta, text: str) -> None:
        """Go on with the arguments of the last call."""
        delta.add_arguments(self.count - 1, text)
