"""Reads JSON while it arrives, in pieces of any size. Pure."""

import json
import re

BLANK = " \t\r\n"
_NEXT_IN_STRING = re.compile(r'["\\]')
_NEXT_OUTSIDE = re.compile(r'["{}\[\]]|[^\s\w:,.+\-]')
_NOT_LITERAL = re.compile(r"[^\w.+\-]")


class JsonValue:
    """Finds the end of one value. What cannot be JSON ends it too: it is `broken` then."""

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._kind = ""  # its first character, or x for a number or a word
        self._depth = 0
        self._in_string = False
        self._escaped = False

    @property
    def kind(self) -> str:
        """The value's first character, x for a number or a word; empty before it."""
        return self._kind

    def read(self, text: str, start: int) -> int:
        """Read on at `start`, and return where the value, or the text, ends. A number or a word ends before the
        character that follows it."""
        position = start
        if not self._kind and position < len(text):
            first = text[position]
            self._kind = first if first in '{["' else "x"
            if self._kind == "x" and _NOT_LITERAL.match(first):
                self.broken = True
                return position
        if self._kind == "x":
            end = _NOT_LITERAL.search(text, position)
            self.done = end is not None
            return end.start() if end else len(text)
        while position < len(text) and not (self.done or self.broken):
            position = self._in(text, position) if self._in_string else self._out(text, position)
        return position

    def _in(self, text: str, position: int) -> int:
        if self._escaped:
            self._escaped = False
            return position + 1
        found = _NEXT_IN_STRING.search(text, position)
        if found is None:
            return len(text)
        if found[0] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self.done = self._depth == 0
        return found.end()

    def _out(self, text: str, position: int) -> int:
        found = _NEXT_OUTSIDE.search(text, position)
        if found is None:
            return len(text)
        what = found[0]
        if what == '"':
            self._in_string = True
        elif what in "{[":
            self._depth += 1
        elif what in "}]":
            self._depth -= 1
            self.done = self._depth == 0
        else:
            self.broken = True
            return found.start()
        return found.end()


def decoded_string(text: str) -> str | None:
    """The string that JSON text says; None where it says none, or one that UTF-8 has no bytes for."""
    try:
        value = json.loads(text)
        return value if isinstance(value, str) and value.encode() is not None else None
    except ValueError:
        return None
