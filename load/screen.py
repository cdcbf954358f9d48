"""Shows the progress of a load: a live picture on a terminal, a plain line every few seconds elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from livescale.load.stats import Tally, duration
from livescale.load.story import Story
from livescale.services.cli.status_view import count_layers
from livescale.shared.messages.membership import WorkerReport

STATE_COLORS = {"spare": "dim", "loading": "yellow", "live": "cyan", "serving": "green", "draining": "magenta"}
LOADING = ("loading", "live")
SHOWN_DECISIONS = 4
PLAIN_SECONDS = 5.0


class ScreenView(msgspec.Struct, frozen=True):
    """One moment: what is going on, since and until when (seconds), and what is known then."""

    phase: str
    elapsed: float
    seconds: float | None
    total: int
    now: float
    story: Story
    tally: Tally


def render_line(view: ScreenView) -> str:
    """Return the view as one line of plain text."""
    states = ", ".join(describe_worker(report, view.story) for report in view.story.present(view.now))
    return f"{render_clock(view)} {view.phase:<6}  {states}  {render_load(view)}"


def render_screen(view: ScreenView) -> RenderableType:
    """Return the view as a picture for a terminal."""
    heading = Text.assemble((f"{view.phase} ", "bold"), (render_clock(view), "dim"))
    return Group(heading, render_workers(view), Text(render_load(view)), *render_decisions(view))


def render_clock(view: ScreenView) -> str:
    return f"{view.elapsed:5.1f} s" + (f" of {view.seconds:.0f}" if view.seconds is not None else "")


def render_load(view: ScreenView) -> str:
    ttft, tbt = view.tally.recent(view.now)
    waiting = view.story.queue[-1].waiting if view.story.queue else "?"
    return (
        f"sent {view.tally.sent}/{view.total}, running {view.tally.running}, queued {waiting}, "
        f"failed {view.tally.failed}; TTFT {duration(ttft)}, TBT {duration(tbt)}"
    )


def render_workers(view: ScreenView) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for report in view.story.present(view.now):
        ready, total = blocks(report, view.story)
        bar = ProgressBar(total, ready, width=30, complete_style="yellow", finished_style="green") if total else Text()
        running = f"{report.load.running_requests} running" if report.load and report.state != "spare" else ""
        state = Text(report.state, style=STATE_COLORS[report.state])
        progress = f"{ready}/{total} blocks" if total else ""
        table.add_row(report.id, state, bar, progress, running, describe_sharing(report))
    return table


def render_decisions(view: ScreenView) -> list[Text]:
    made = [decision for decision in view.story.decisions if decision.action != "hold"][-SHOWN_DECISIONS:]
    return [
        Text(
            f"{decision.at - view.now:+.0f} s  {decision.current} -> {decision.target}: {decision.reason}",
            style="dim",
            no_wrap=True,
            overflow="ellipsis",
        )
        for decision in made
    ]


def blocks(report: WorkerReport, story: Story) -> tuple[int, int]:
    """Blocks ready and in all at a worker; (0, 0) where it has none to show."""
    # Events come with each block, heartbeats twice a second: while loading the events are ahead.
    if report.state in LOADING:
        return story.progress(report.id) or (0, 0)
    return (len(report.holding.ready), report.holding.total) if report.holding else (0, 0)


def describe_sharing(report: WorkerReport) -> str:
    """Which layers this worker and its helpers run while it is live; empty if it is not."""
    handed_over = sum(report.handed_over.values())
    if report.state == "live":
        layers = count_layers(report)
        here = min(report.live_layers, layers)
        runs = f"runs layers 1-{here} of {layers}" if here else "waits for its first layer"
        return f"{runs}, {report.live_waiting} wait, {handed_over} handed over"
    return f"runs the rest for {', '.join(report.helping)}" if report.helping else ""


def describe_worker(report: WorkerReport, story: Story) -> str:
    (ready, total), sharing = blocks(report, story), describe_sharing(report)
    progress = f" {ready}/{total}" if report.state in LOADING and total else ""
    return f"{report.id} {report.state}{progress}" + (f" ({sharing})" if sharing else "")


class Screen(Protocol):
    """`note` leaves a line for good, `show` is the present moment."""

    def note(self, line: str) -> None: ...

    def show(self, view: ScreenView) -> None: ...


class PlainScreen:
    """A line for each note, and for the present moment every five seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = -PLAIN_SECONDS

    def note(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def show(self, view: ScreenView) -> None:
        if not 0 <= view.elapsed - self._shown < PLAIN_SECONDS:
            self._shown = view.elapsed
            self.note(render_line(view))


class LiveScreen:
    """The present moment stays at the bottom of the terminal, notes go by above it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def note(self, line: str) -> None:
        self._live.console.print(Text(line), soft_wrap=True)

    def show(self, view: ScreenView) -> None:
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
