"""Reads arguments that are written between tags, one parameter after the other, as Qwen3-Coder does. Pure."""

import json

from livescale.services.gateway.tool_calls.json_text import BLANK
from livescale.services.gateway.tool_calls.message import Calls, Delta

BEGIN = "<parameter="
END = "</parameter>"
CLOSE = "</function>"
TEXT = frozenset({"string"})
_PYTHON = {"True": "true", "False": "false", "None": "null"}


class TaggedArguments:
    """Everything between `<function=NAME>` and `</function>`, handed on as one JSON object.

    The schema says whether a value is a text, which is handed on as it comes, or something else, written as JSON.
    """

    def __init__(self, calls: Calls) -> None:
        self.done = self.failed = False
        self._calls = calls
        self._opened = False
        self._place = "between"
        self._any = False  # whether a parameter was handed on
        self._key = ""
        self._value = ""  # of a parameter that is not a text
        self._fresh = False  # whether nothing of the value was read

    def read(self, text: str, delta: Delta) -> int:
        """Read on, after the tag that names the function."""
        if not self._opened:
            self._opened = True
            self._calls.open(delta, self._calls.name)
        position = 0
        while not self.done:
            end = self._step(text, position, delta)
            if end == position:
                break
            position = end
        return position

    def end(self, delta: Delta) -> None:
        """The text is over; the arguments stay as they are."""

    def _step(self, text: str, position: int, delta: Delta) -> int:
        if self._place == "between":
            return self._between(text, position, delta)
        if self._place == "key":
            return self._read_key(text, position, delta)
        return self._read_value(text, position, delta)

    def _between(self, text: str, position: int, delta: Delta) -> int:
        while position < len(text) and text[position] in BLANK:
            position += 1
        rest = text[position : position + len(BEGIN)]
        if rest == BEGIN:
            self._place, self._key = "key", ""
            return position + len(BEGIN)
        if text.startswith(CLOSE, position):
            self._close(delta)
            return position + len(CLOSE)
        if not (BEGIN.startswith(rest) or CLOSE.startswith(rest)):
            self._close(delta)  # neither a parameter nor the end, so it is over
        return position

    def _read_key(self, text: str, position: int, delta: Delta) -> int:
        end = text.find(">", position)
        if end < 0:
            return position
        self._key = text[position:end].strip()
        self._calls.add(delta, ("," if self._any else "{") + json.dumps(self._key, ensure_ascii=False) + ":")
        self._place, self._any, self._fresh, self._value = "value", True, True, ""
        if self._is_text:
            self._calls.add(delta, '"')
        return end + 1

    def _read_value(self, text: str, position: int, delta: Delta) -> int:
        if self._fresh and position < len(text):
            self._fresh = False
            if text[position] == "\n":  # the line break after the tag
                return position + 1
        end = text.find(END, position)
        if end >= 0:
            value = text[position:end].removesuffix("\n")
            if self._is_text:
                self._calls.add(delta, _escaped(value) + '"')
            else:
                self._calls.add(delta, as_json(self._value + value, self._types))
            self._place = "between"
            return end + len(END)
        certain = len(text) - _held(text, position)
        self._hand_on(text[position:certain], delta)
        return certain

    def _hand_on(self, text: str, delta: Delta) -> None:
        if self._is_text:
            self._calls.add(delta, _escaped(text))
        else:
            self._value += text

    @property
    def _types(self) -> frozenset[str]:
        return self._calls.types.get(self._calls.name, {}).get(self._key, TEXT)

    @property
    def _is_text(self) -> bool:
        return self._types <= TEXT

    def _close(self, delta: Delta) -> None:
        self._calls.add(delta, "}" if self._any else "{}")
        self.done = True


def _held(text: str, position: int) -> int:
    """The length of the end of `text` that may belong to the end of a value: a line break, and part of the tag."""
    start = text.rfind("<", max(position, len(text) - len(END)))
    begun = len(text) - start if start >= 0 and END.startswith(text[start:]) else 0
    before = len(text) - begun - 1
    return begun + (1 if before >= position and text[before] == "\n" else 0)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def as_json(value: str, types: frozenset[str]) -> str:
    """The value as JSON, of one of these types where it can be read so, otherwise as a text."""
    bare = value.strip()
    try:
        read = json.loads(_PYTHON.get(bare, bare))
        if json_type(read) & types:
            said = json.dumps(read, ensure_ascii=False, allow_nan=False)  # Python reads NaN, which JSON has not
            said.encode()  # nor has UTF-8 halves of surrogates
            return said
    except (ValueError, RecursionError):
        pass
    return json.dumps(value, ensure_ascii=False)


def json_type(value: object) -> frozenset[str]:
    """The names of JSON's types that a value has."""
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    names = {float: "number", str: "string", dict: "object", list: "array", type(None): "null"}
    return frozenset({names[type(value)]})
