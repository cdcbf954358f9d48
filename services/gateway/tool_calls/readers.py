"""The parts of a format that end by themselves: names, JSON, calls in Python. Pure.

A reader is fed the text from its place on, as far as it is there. It says how much of that it has used up, and
whether it is `done`; a text that is not what it reads makes it `failed`.
"""

import re
from typing import Protocol

from livescale.services.gateway.tool_calls.json_text import BLANK, JsonValue, decoded_string
from livescale.services.gateway.tool_calls.message import Calls, Delta

LONGEST_NAME = 64
_NAME = re.compile(r"[\w.\-]*")


class Reader(Protocol):
    """Reads one part of a format, such as a call's JSON, piece by piece."""

    done: bool
    failed: bool

    def read(self, text: str, delta: Delta) -> int: ...

    def end(self, delta: Delta) -> None: ...


class Name:
    """The name of a tool, up to the first character that no name has."""

    def __init__(self, calls: Calls) -> None:
        self.done = self.failed = False
        self._calls = calls
        self._name = ""

    def read(self, text: str, delta: Delta) -> int:
        """Read on. Blanks before the name are skipped."""
        start = 0
        if not self._name:
            start = len(text) - len(text.lstrip(BLANK))
        found = _NAME.match(text, start)
        assert found is not None
        self._name += found[0]
        if len(self._name) > LONGEST_NAME:
            self.failed = True
        elif found.end() < len(text):
            self.done, self.failed = bool(self._name), not self._name
            self._calls.name = self._name
        return found.end()

    def end(self, delta: Delta) -> None:
        """Give up, as the text is over before the call was whole."""
        self.failed = True


class Arguments:
    """The arguments of the call whose name came before: a JSON object, handed on as it is."""

    def __init__(self, calls: Calls) -> None:
        self.done = self.failed = False
        self._calls = calls
        self._value = JsonValue()

    def read(self, text: str, delta: Delta) -> int:
        """Read on, from the object's first character."""
        fresh = not self._value.kind
        end = self._value.read(text, 0)
        if fresh and self._value.kind != "{":
            self.failed = True
            return 0
        if fresh:
            self._calls.open(delta, self._calls.name)
        self._calls.add(delta, text[:end])
        self.done = self._value.done or self._value.broken
        return end

    def end(self, delta: Delta) -> None:
        """The text is over; the arguments stay as they are."""


class JsonCall:
    """A JSON object with a tool's name and its arguments, or parameters, in any order.

    With `known` it is a call only where there is such a tool.
    """

    def __init__(self, calls: Calls, *, known: bool) -> None:
        self.done = self.failed = False
        self._calls = calls
        self._known = known
        self._opened = False
        self._expect = "{"
        self._key = ""
        self._said = ""  # the value so far, where it is not handed on at once
        self._early = ""  # arguments that came before the name
        self._value = JsonValue()
        self._has_arguments = False

    def read(self, text: str, delta: Delta) -> int:
        """Read on, from the object's first character."""
        position = 0
        while position < len(text) and not (self.done or self.failed):
            if text[position] in BLANK and not self._value.kind:
                position += 1
            elif self._expect == "value":
                position = self._read_value(text, position, delta)
            elif self._expect == "key":
                position = self._read_key(text, position, delta)
            else:
                position = self._read_sign(text, position, delta)
        return position

    def end(self, delta: Delta) -> None:
        """The text is over. Without a name it was no call."""
        self._flush(delta)
        self.failed = not self._opened

    def _read_sign(self, text: str, position: int, delta: Delta) -> int:
        sign, expected = text[position], self._expect
        if sign == expected:
            self._expect = "value" if sign == ":" else "key"
        elif sign == "}" and expected == ",":
            self._close(delta)
        else:
            self._break()
            return position
        return position + 1

    def _read_key(self, text: str, position: int, delta: Delta) -> int:
        if not self._value.kind and text[position] != '"':
            if text[position] != "}":
                self._break()
                return position
            self._close(delta)
            return position + 1
        end = self._read_on(text, position)
        if self._value.done:
            self._key = decoded_string(self._said) or ""
            self._next(":")
        return end

    def _read_value(self, text: str, position: int, delta: Delta) -> int:
        is_arguments = self._key in ("arguments", "parameters")
        end = self._read_on(text, position)
        if self._value.broken:
            self._flush(delta)
            self._break()
            return end
        if is_arguments and self._value.kind == "{":
            self._flush(delta)
        if self._value.done:
            if self._key == "name":
                self._name(decoded_string(self._said), delta)
            elif is_arguments and self._value.kind == '"':
                self._said = decoded_string(self._said) or ""  # an object that was written as a string
                self._flush(delta)
            self._next(",")
        return end

    def _read_on(self, text: str, position: int) -> int:
        end = self._value.read(text, position)
        self._said += text[position:end]
        return end

    def _next(self, expect: str) -> None:
        self._expect, self._said, self._value = expect, "", JsonValue()

    def _name(self, name: str | None, delta: Delta) -> None:
        if not name or len(name) > LONGEST_NAME or (self._known and name not in self._calls.types):
            self.failed = not self._opened
        elif not self._opened:
            self._opened = True
            self._calls.open(delta, name)
            self._calls.add(delta, self._early)

    def _flush(self, delta: Delta) -> None:
        """Hand on what there is of the arguments."""
        if self._key not in ("arguments", "parameters"):
            return
        said, self._said = self._said, ""
        self._has_arguments = self._has_arguments or bool(said)
        if self._opened:
            self._calls.add(delta, said)
        else:
            self._early += said

    def _close(self, delta: Delta) -> None:
        self.done, self.failed = self._opened, not self._opened
        if self._opened and not self._has_arguments:
            self._calls.add(delta, "{}")

    def _break(self) -> None:
        """Stop where this is no JSON. What was handed on stays."""
        self.done, self.failed = self._opened, not self._opened
