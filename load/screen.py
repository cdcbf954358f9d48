"""Where a load talks to its user: a live picture on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from livescale.load.view import View, render_line, render_screen

PLAIN_SECONDS = 5.0


class Screen(Protocol):
    """`note` leaves a line for good, `show` is the present moment."""

    def note(self, line: str) -> None: ...

    def show(self, view: View) -> None: ...


class PlainScreen:
    """A line for each note, and for the present moment every five seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = -PLAIN_SECONDS

    def note(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def show(self, view: View) -> None:
        if not 0 <= view.elapsed - self._shown < PLAIN_SECONDS:
            self._shown = view.elapsed
            self.note(render_line(view))


class LiveScreen:
    """The present moment stays at the bottom of the terminal, notes go by above it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def note(self, line: str) -> None:
        self._live.console.print(Text(line), soft_wrap=True)

    def show(self, view: View) -> None:
        self._live.update(render_screen(view), refresh=True)


@contextmanager
def open_screen(console: Console) -> Iterator[Screen]:
    """A screen fit for where `console` writes to."""
    if not console.is_terminal:
        yield PlainScreen(console)
        return
    # Drawn only when there is something new; what remains in the end are the notes.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveScreen(live)
