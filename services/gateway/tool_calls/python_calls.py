"""Reads calls that are written in Python: `f(a=1), g(b="x")]`. Pure; nothing of it is run."""

import ast
import json
import re

from livescale.services.gateway.tool_calls.json_text import BLANK
from livescale.services.gateway.tool_calls.message import Calls, Delta

LONGEST = 256  # characters of a name with blanks around it; else reading one would take ever longer
_SIGN = re.compile(r"""["'()\[\]{}]""")
_NAME = re.compile(r"\s*[A-Za-z_][\w.]*\s*")
_OPENS, _CLOSES = "([{", ")]}"


class PythonCalls:
    """A list of calls, after its opening bracket. Each call is handed on when it is complete."""

    def __init__(self, calls: Calls) -> None:
        self.done = self.failed = False
        self._calls = calls
        self._any = False
        self._between = False  # after a call
        self._said = ""  # of the call so far
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def read(self, text: str, delta: Delta) -> int:
        """Read on, from the bracket that opens the list of calls; return how much was read."""
        position = 0
        while position < len(text) and not (self.done or self.failed):
            if self._between:
                position = self._read_separator(text, position)
            elif self._depth == 0:
                position = self._read_name(text, position)
            else:
                position = self._read_arguments(text, position, delta)
        return position

    def end(self, delta: Delta) -> None:
        """The text is over; a call that is not complete is none."""
        self.failed = not self._any

    def _stop(self) -> None:
        self.done, self.failed = self._any, not self._any

    def _read_separator(self, text: str, position: int) -> int:
        sign = text[position]
        if sign == "]":
            self.done = True
        elif sign == ",":
            self._between = False
        elif sign not in BLANK:
            self._stop()
            return position
        return position + 1

    def _read_name(self, text: str, position: int) -> int:
        sign = text[position]
        if sign == "(":
            if self._said.strip() not in self._calls.types:
                self._stop()
                return position
            self._depth = 1
        elif sign == "]" and self._any and not self._said.strip():
            self.done = True
            return position + 1
        elif len(self._said) >= LONGEST or ((self._said + sign).strip() and not _NAME.fullmatch(self._said + sign)):
            self._stop()
            return position
        self._said += sign
        return position + 1

    def _read_arguments(self, text: str, position: int, delta: Delta) -> int:
        if self._escaped:
            self._escaped = False
            end = position + 1
        else:
            end = self._next_sign(text, position)
        self._said += text[position:end]
        if self._depth == 0:
            self._hand_on(delta)
        return end

    def _next_sign(self, text: str, position: int) -> int:
        if self._quote:
            found = re.compile(rf"[{self._quote}\\]").search(text, position)
            if found is not None:
                self._escaped = found[0] == "\\"
                self._quote = self._quote if self._escaped else ""
            return found.end() if found else len(text)
        found = _SIGN.search(text, position)
        if found is None:
            return len(text)
        if found[0] in _OPENS:
            self._depth += 1
        elif found[0] in _CLOSES:
            self._depth -= 1
        else:
            self._quote = found[0]
        return found.end()

    def _hand_on(self, delta: Delta) -> None:
        call = parsed(self._said)
        if call is None:
            self._stop()
            return
        self._calls.open(delta, call[0])
        self._calls.add(delta, call[1])
        self._any, self._between, self._said = True, True, ""


def parsed(text: str) -> tuple[str, str] | None:
    """The name and the arguments, as JSON, of one call with named arguments that are literals; None for other text."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(one.arg is None for one in call.keywords):
            return None
        arguments = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        said = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        said.encode()  # UTF-8 has no halves of surrogates
        return ast.unparse(call.func), said
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
