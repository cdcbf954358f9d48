"""Splits an answer into content, reasoning and calls while it arrives, as a format declares. Pure.

A format is a table of states. What comes of a text does not depend on how it is cut into pieces; half a marker is never
handed on, and what turns out to be no call stays content.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from livescale.services.gateway.tool_calls.json_text import BLANK
from livescale.services.gateway.tool_calls.message import Calls, Delta
from livescale.services.gateway.tool_calls.readers import Reader

START = "start"
TEXT = "text"  # the state that a text which is no call goes on in
Chosen = Callable[[str, Calls], str]


@dataclass(frozen=True)
class Mark:
    """A marker, and the state after it, which may be chosen by the header before. One that is `kept` belongs to what
    follows; one that `closes` says that what came before was right."""

    text: str
    to: str | Chosen
    kept: bool = False
    closes: bool = False


@dataclass(frozen=True)
class Marked:
    """What states with markers have in common."""

    marks: tuple[Mark, ...] = ()

    @cached_property
    def by_text(self) -> Mapping[str, Mark]:
        """The markers of this state, by their text."""
        return {mark.text: mark for mark in self.marks}

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """A pattern that finds the first marker of this state."""
        longest_first = sorted(self.by_text, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @cached_property
    def firsts(self) -> re.Pattern[str]:
        """A pattern that finds each place where a marker may begin."""
        return re.compile("|".join(sorted({re.escape(mark.text[0]) for mark in self.marks})) or r"(?!)")

    def begun(self, text: str) -> int:
        """The length of the longest end of `text` that may begin a marker."""
        for found in self.firsts.finditer(text):
            if any(one.startswith(text[found.start() :]) for one in self.by_text):
                return len(text) - found.start()
        return 0


@dataclass(frozen=True)
class Free(Marked):
    """Text of a kind, up to a marker. Of content, blanks before a call are dropped."""

    kind: Literal["content", "reasoning", "header"] = "content"


@dataclass(frozen=True)
class Blanks(Marked):
    """Nothing but blanks, up to a marker. Anything else goes on in the state `otherwise`; None: it was no call."""

    otherwise: str | None = None


@dataclass(frozen=True)
class Part:
    """Something that ends by itself, and the state after it."""

    reader: Callable[[Calls], Reader]
    then: str


State = Free | Blanks | Part
Format = Mapping[str, State]


def markers(format: Format) -> frozenset[str]:
    """Return all markers of a format, of each of its states."""
    return frozenset(mark.text for state in format.values() if isinstance(state, Marked) for mark in state.marks)


@dataclass
class Machine:
    """Reads one answer. `state` is the name of the state it is in."""

    format: Format
    calls: Calls
    state: str = START
    _held: str = ""
    _opening: str = ""  # markers and blanks that are content after all if no call follows
    _header: str = ""
    _reader: Reader | None = field(default=None, repr=False)
    _before: int = 0  # calls before the reader

    @property
    def reasons(self) -> bool:
        """Whether the text that follows is reasoning, and no content."""
        state = self.format[self.state]
        return isinstance(state, Free) and state.kind == "reasoning"

    def feed(self, text: str, delta: Delta) -> None:
        """Read on, and add to `delta` what is certain."""
        self._held += text
        while self._held and self._step(delta):
            pass

    def flush(self, delta: Delta) -> None:
        """The text is over: add what was held back."""
        state = self.format[self.state]
        if isinstance(state, Part) and self._reader is not None:
            self._reader.end(delta)
            if not self._reader.failed:
                return
        if isinstance(state, Free) and state.kind == "reasoning":
            delta.reasoning += self._held
        elif not (isinstance(state, Free) and state.kind == "header"):
            rest = self._opening + self._held
            delta.content += rest if rest.strip(BLANK) or not self.calls.count else ""
        self._held = self._opening = ""

    def _step(self, delta: Delta) -> bool:
        """Read one part of what is held; false where more has to come."""
        state = self.format[self.state]
        if isinstance(state, Free):
            return self._read_free(state, delta)
        if isinstance(state, Blanks):
            return self._read_blanks(state, delta)
        return self._read_part(state, delta)

    def _read_free(self, state: Free, delta: Delta) -> bool:
        found = state.pattern.search(self._held)
        if found is None:
            end = len(self._held) - state.begun(self._held)
            if state.kind == "content" and state.marks:
                end = len(self._held[:end].rstrip(BLANK))
            self._say(state, self._held[:end], delta)
            self._held = self._held[end:]
            return False
        before = self._held[: found.start()]
        bare = before.rstrip(BLANK) if state.kind == "content" else before
        self._say(state, bare, delta)
        self._opening = before[len(bare) :] if state.kind == "content" else self._opening
        self._held = self._held[len(before) :]
        self._pass(state.by_text[found[0]])
        return True

    def _say(self, state: Free, text: str, delta: Delta) -> None:
        if state.kind == "content":
            delta.content += text
        elif state.kind == "reasoning":
            delta.reasoning += text
        else:
            self._header += text
            self._opening += text

    def _read_blanks(self, state: Blanks, delta: Delta) -> bool:
        bare = self._held.lstrip(BLANK)
        found = state.pattern.match(bare)
        if found is not None:
            self._opening += self._held[: len(self._held) - len(bare)]
            self._held = bare
            self._pass(state.by_text[found[0]])
        elif state.begun(bare) == len(bare):
            return False  # more has to come
        elif state.otherwise is None:
            self._fail(delta)
        else:
            self.state = state.otherwise
        return True

    def _read_part(self, state: Part, delta: Delta) -> bool:
        if self._reader is None:
            self._reader, self._before = state.reader(self.calls), self.calls.count
        reader = self._reader
        used = reader.read(self._held, delta)
        if self.calls.count == self._before:
            self._opening += self._held[:used]
        else:
            self._opening = ""
        self._held = self._held[used:]
        if reader.failed:
            self._fail(delta)
        elif reader.done:
            self.state, self._reader = state.then, None
        return reader.done or reader.failed

    def _pass(self, mark: Mark) -> None:
        """Go on after a marker, at which the held text begins."""
        self.state = mark.to if isinstance(mark.to, str) else mark.to(self._header, self.calls)
        if not mark.kept:
            self._held = self._held[len(mark.text) :]
            self._opening += mark.text
        self._header = self._header + " " if self._is_header else ""
        entered = self.format[self.state]
        if mark.closes or (isinstance(entered, Free) and entered.kind != "header"):
            self._opening = ""

    @property
    def _is_header(self) -> bool:
        state = self.format[self.state]
        return isinstance(state, Free) and state.kind == "header"

    def _fail(self, delta: Delta) -> None:
        """This is no call: what was read of it is content."""
        delta.content += self._opening
        self._opening, self._reader, self.state = "", None, TEXT
