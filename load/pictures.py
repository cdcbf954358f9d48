"""Draws what a load did over time as SVG: for reports, whose text colour it takes over, and as files of their own."""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

import matplotlib as mpl
import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from livescale.load.incidents import RunIncident
from livescale.load.outcome import Outcome
from livescale.load.records import RequestRecord
from livescale.load.stats import percentile
from livescale.load.story import Newcomer, Story

Points = list[tuple[float, float]]
# Stands for the page's own text colour until the SVG is written.
INK = "#010203"
BLUE, ORANGE, GREEN, VIOLET, GREY = "#3b82f6", "#f59e0b", "#10b981", "#8b5cf6", "#94a3b8"
RED = "#ef4444"
STATES = {"serving": GREEN, "live": BLUE, "loading": ORANGE, "draining": VIOLET, "spare": GREY}
LINES = (BLUE, ORANGE, GREEN, VIOLET, RED, "#06b6d4")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 11,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    "legend.fontsize": 10,
    **{f"{part}.color": INK for part in ("text", "xtick", "ytick", "grid")},
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
}
# A viewer that knows what its user prefers says so; everyone else gets black on white.
COLOURS = """<style>
svg { color: #1f2937; background: #ffffff; max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { svg { color: #e5e7eb; background: #111827; } }
</style>"""


def rate_of(times: Iterable[float], start: float, end: float, width: float = 2.0) -> Points:
    """Events a second in each stretch of `width` seconds from `start` to `end`, at the stretch's middle."""
    edges = np.arange(0.0, max(width, end - start) + width, width)
    counts, _ = np.histogram([at - start for at in times], bins=edges)
    return [(float(edge + width / 2), float(count / width)) for edge, count in zip(edges[:-1], counts, strict=True)]


def ttft_points(records: Iterable[RequestRecord], start: float) -> Points:
    """Each request's TTFT at the time it was due."""
    return [(record.due - start, record.ttft) for record in records if record.ttft is not None]


def gap_points(records: Iterable[RequestRecord], start: float) -> Points:
    """Each gap between two tokens of a stream, at the time of the later one."""
    return [(at - start, gap) for record in records for at, gap in zip(record.token_at[1:], record.gaps, strict=True)]


def running_percentile(points: Sequence[tuple[float, float]], q: float, width: float = 2.0) -> Points:
    """The percentile of the points in each stretch of `width` seconds, where there are any."""
    stretches: dict[int, list[float]] = {}
    for at, value in points:
        stretches.setdefault(int(at // width), []).append(value)
    return [((slot + 0.5) * width, percentile(values, q) or 0.0) for slot, values in sorted(stretches.items())]


class SvgPicture(msgspec.Struct, frozen=True):
    """One figure: `description` is read aloud and printed under it."""

    title: str
    description: str
    svg: str


def draw_pictures(outcome: Outcome) -> list[SvgPicture]:
    """All pictures of a load, in the order in which they are read."""
    return [
        draw(*RATE, lambda axes: paint_rate(axes, outcome)),
        draw(*INSTANCES, lambda axes: paint_instances(axes, outcome)),
        draw(*QUEUE, lambda axes: paint_queue(axes, outcome)),
        draw(*TTFT, lambda axes: paint_latency(axes, outcome, ttft_points(outcome.records, outcome.start), "TTFT (s)")),
        draw(*BLOCKS, lambda axes: paint_blocks(axes, outcome)),
        draw(*TBT, lambda axes: paint_latency(axes, outcome, gap_points(outcome.records, outcome.start), "TBT (s)")),
    ]


RATE = ("Requests", "Requests due and answered, a second, in steps of 2 s. The shaded stretch is the burst.")
INSTANCES = ("Instances", "Workers in each state. A dotted line is a decision to scale.")
QUEUE = (
    "Queue",
    "Requests that wait, at the router or at an instance, and requests that are being answered; shared: those at an "
    "instance that still loads, which runs what layers it has, for others to take over.",
)
TTFT = ("Time to first token", "A point is a request, at the time it was due; the lines are the median and p99 of 2 s.")
# Sign in the text, matplotlib's marker, what it is.
MARKS = (
    ("▲", "^", "first layer ready"),
    ("▶", ">", "first layer run"),
    ("◆", "D", "first token shared with others"),
    ("■", "s", "whole"),
    ("✚", "P", "serves"),
    ("★", "*", "first token of its own"),
)
BLOCKS = (
    "Parameters arriving",
    "Blocks of parameters ready at each new instance, from the decision on: "
    f"{', '.join(f'{sign} {what}' for sign, _, what in MARKS)}.",
)
TBT = ("Time between tokens", "A point is one token of one stream; the lines are the median and p99 of 2 s.")


def draw(title: str, description: str, paint: Callable[[Axes], None]) -> SvgPicture:
    return draw_figure(title, description, lambda figure: paint(figure.add_subplot()))


def draw_figure(
    title: str, description: str, paint: Callable[[Figure], None], size_inches: tuple[float, float] = (4.9, 2.9)
) -> SvgPicture:
    """A picture of several axes, which `paint` adds."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=size_inches, layout="constrained")
        paint(figure)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return SvgPicture(title, description, as_inline(written.getvalue(), title))


def as_inline(svg: str, title: str) -> str:
    """The `<svg>` element alone, scaled by the page, with a title and ids of its own."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r' (?:width|height)="[\d.]+pt"', "", element, count=2)
    # A page holds several pictures, and matplotlib numbers the parts of each from 1.
    name = re.sub(r"\W+", "-", title.lower())
    element = re.sub(r'\bid="', f'id="{name}-', element)
    element = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", element)
    element = element.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
    return element.replace(INK, "currentColor")


def paint_frame(axes: Axes, outcome: Outcome, label: str) -> None:
    burst = outcome.periods[1]
    # Behind everything, so that it changes no colour.
    axes.axvspan(burst.start - outcome.start, burst.end - outcome.start, color=GREY, alpha=0.18, linewidth=0, zorder=0)
    paint_incidents(axes, outcome.incidents, outcome.start)
    frame(axes, outcome.end - outcome.start, label)


def paint_incidents(axes: Axes, incidents: Sequence[RunIncident], start: float) -> None:
    for each in incidents:
        at = each.at - start
        if each.what == "stall":
            axes.axvspan(at - each.seconds, at, color=RED, alpha=0.35, linewidth=0, zorder=0)
        else:
            axes.axvline(at, color=RED, linestyle=":" if each.what == "restart" else "-", linewidth=1.2)


def frame(axes: Axes, seconds: float, label: str) -> None:
    axes.set_xlim(0, seconds)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel(label)


def paint_rate(axes: Axes, outcome: Outcome) -> None:
    due = rate_of((record.due for record in outcome.records), outcome.start, outcome.end)
    ended = rate_of((record.ended for record in outcome.records), outcome.start, outcome.end)
    axes.bar(*split(due), width=2.0, color=BLUE, alpha=0.5, label="due")
    axes.plot(*split(ended), color=ORANGE, linewidth=1.6, label="answered")
    paint_frame(axes, outcome, "requests/s")
    place_legend(axes)


def paint_instances(axes: Axes, outcome: Outcome) -> None:
    paint_states(axes, outcome.story, outcome.start, outcome.end)
    paint_frame(axes, outcome, "workers")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    place_legend(axes)


def paint_states(axes: Axes, story: Story, start: float, end: float) -> None:
    """Paint how many workers are in each state over time, and mark the decisions."""
    counts = story.state_counts()
    # What was before the load is drawn at its start, and the last state lasts until the end.
    times = [max(0.0, at - start) for at, _ in counts] + [end - start]
    heights = [[*(count[state] for _, count in counts), counts[-1][1][state] if counts else 0] for state in STATES]
    axes.stackplot(times, heights, step="post", colors=list(STATES.values()), labels=list(STATES), alpha=0.85)
    for decision in story.decisions:
        if decision.action != "hold" and decision.at >= start:
            axes.axvline(decision.at - start, color=INK, linestyle=":", linewidth=1.2)


def paint_queue(axes: Axes, outcome: Outcome) -> None:
    points = [point for point in outcome.story.queue if outcome.start <= point.at <= outcome.end]
    times = [point.at - outcome.start for point in points]
    axes.plot(times, [point.running for point in points], color=BLUE, linewidth=1.6, label="running")
    axes.plot(times, [point.waiting for point in points], color=ORANGE, linewidth=1.6, label="waiting")
    axes.plot(times, [point.shared for point in points], color=VIOLET, linewidth=1.6, label="shared")
    paint_frame(axes, outcome, "requests")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    place_legend(axes)


def paint_latency(axes: Axes, outcome: Outcome, points: Points, label: str) -> None:
    # Thousands of points as vectors would make the page slow; above that they become one small image.
    axes.scatter(*split(points), s=7, color=BLUE, alpha=0.55, linewidths=0, rasterized=len(points) > 5_000)
    axes.plot(*split(running_percentile(points, 50)), color=GREEN, linewidth=1.6, label="p50")
    axes.plot(*split(running_percentile(points, 99)), color=ORANGE, linewidth=1.6, label="p99")
    paint_frame(axes, outcome, label)
    place_legend(axes)


def paint_blocks(axes: Axes, outcome: Outcome) -> None:
    newcomers = [newcomer for newcomer in outcome.newcomers() if newcomer.blocks]
    for index, newcomer in enumerate(newcomers):
        color = LINES[index % len(LINES)]
        label = f"{newcomer.worker} at {newcomer.decided_at - outcome.start:.0f} s"
        points = [(0.0, 0.0), *((at - newcomer.decided_at, float(ready)) for at, ready in newcomer.blocks)]
        axes.step(*split(points), where="post", color=color, label=label)
        paint_moments(axes, newcomer, outcome, points, color)
    if newcomers:
        place_legend(axes, columns=3)
    else:
        axes.text(0.5, 0.5, "no instance was added", ha="center", transform=axes.transAxes)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds since the decision")
    axes.set_ylabel("blocks ready")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def paint_moments(axes: Axes, newcomer: Newcomer, outcome: Outcome, points: Points, color: str) -> None:
    """A mark for each, at the height that the blocks had reached."""
    moments = (
        *(newcomer.live_at, newcomer.first_layer_at, newcomer.shared_token_at(outcome.records)),
        *(newcomer.whole_at, newcomer.serving_at, newcomer.first_token_at),
    )
    for (_, marker, _), at in zip(MARKS, moments, strict=True):
        since = newcomer.since_decision(at)
        if since is not None:
            height = max(ready for time, ready in points if time <= since)
            axes.plot([since], [height], marker=marker, markersize=12 if marker == "*" else 7, color=color)


def place_legend(axes: Axes, columns: int = 5) -> None:
    """Place the legend above the axes, where it hides nothing."""
    axes.legend(ncols=columns, loc="lower right", bbox_to_anchor=(1.0, 1.0), handlelength=1.2, columnspacing=1)


def split(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def render_svg(figure: Figure, title: str) -> str:
    """The file's text; `title` is read aloud, and makes two files of the same figure equal."""
    written = io.StringIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": title}):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    head, _, body = text[text.index("<svg") :].partition(">")
    head = head.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
    return f"{head}>\n{COLOURS}{body}".replace(INK, "currentColor")
