"""The report of a run with faults: one HTML file, with pictures of what clients noticed while processes died."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from livescale.load.chaos.faults import SeenFault
from livescale.load.chaos.report import FAULT_HEADINGS, ChaosReport, ChaosRun, fault_rows
from livescale.load.pictures import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    RED,
    Points,
    SvgPicture,
    draw,
    frame,
    gap_points,
    paint_states,
    place_legend,
    running_percentile,
    split,
    ttft_points,
)
from livescale.load.report import (
    render_list,
    render_newcomer_table,
    render_page,
    render_picture,
    render_settings,
    render_table,
    save_page,
)

STILL = {"freeze": (ORANGE, 0.2), "stall": (GREY, 0.5)}
MARKS = "A red line is a kill, an orange stretch a freeze, a grey one a stall of everything"
TTFT = ("Time to first token", f"A point is a request, at the time it was due. {MARKS}.")
PAUSES = ("Pauses", f"The longest wait for a next token of any stream, in steps of 1 s. {MARKS}.")
INSTANCES = ("Instances", f"Workers in each state. {MARKS}, a dotted line a decision to scale.")


def draw_pictures(run: ChaosRun) -> list[SvgPicture]:
    """The pictures of the report, in the order in which they are read."""
    return [
        draw(*PAUSES, lambda axes: paint_pauses(axes, run)),
        draw(*TTFT, lambda axes: paint_ttft(axes, run, ttft_points(run.seen, run.start))),
        draw(*INSTANCES, lambda axes: paint_instances(axes, run)),
    ]


def paint_pauses(axes: Axes, run: ChaosRun) -> None:
    longest = running_percentile(gap_points(run.seen, run.start), 100, width=1.0)
    axes.bar(*split(longest), width=1.0, color=BLUE)
    paint_frame(axes, run, "longest pause (s)")


def paint_ttft(axes: Axes, run: ChaosRun, points: Points) -> None:
    axes.scatter(*split(points), s=9, color=BLUE, linewidths=0)
    paint_frame(axes, run, "TTFT (s)")


def paint_instances(axes: Axes, run: ChaosRun) -> None:
    paint_states(axes, run.story, run.start, run.end)
    paint_frame(axes, run, "workers")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    place_legend(axes)


def paint_frame(axes: Axes, run: ChaosRun, label: str) -> None:
    paint_faults(axes, run.seen_faults, run.start)
    frame(axes, run.end - run.start, label)


def paint_faults(axes: Axes, seen_faults: Sequence[SeenFault], start: float) -> None:
    """Mark the faults. The process that was hit is written beside a kill, at three heights, as kills come close
    together."""
    for place, happening in enumerate(seen_faults):
        at, height = happening.at - start, 1.0 - 0.3 * (place % 3)
        if happening.struck and happening.fault.kind == "kill":
            axes.axvline(at, color=RED, linewidth=1.0, alpha=0.8)
            axes.annotate(
                happening.victim,
                (at, height),
                xycoords=("data", "axes fraction"),
                xytext=(1, -1),
                textcoords="offset points",
                rotation=90,
                va="top",
                fontsize=6,
                color=INK,
            )
        elif happening.struck and happening.fault.kind in STILL:
            colour, alpha = STILL[happening.fault.kind]
            axes.axvspan(at, at + happening.fault.seconds, color=colour, alpha=alpha, linewidth=0, zorder=0)


def write_page(path: Path, report: ChaosReport, run: ChaosRun, settings: dict[str, str]) -> None:
    """Raises ClickException, which names the path."""
    save_page(path, render_report(report, run, settings))


def render_report(report: ChaosReport, run: ChaosRun, settings: dict[str, str]) -> str:
    """Return the report of a chaos run as one HTML page."""
    body = f"""{render_list("Amiss", report.complaints())}
<p>{len(run.asks)} requests went through {settings["gateways"]} gateways while processes of the system were killed and
frozen; routers took office {report.takeovers} times in another's place; {report.scaled_out} scales out and
{report.scaled_in} in were done; {report.handed_over} requests were taken over from instances that were still loading.
The longest time to a first token was {report.longest_first:.2f} s.</p>
<p class="note">Right: every token is the one that an undisturbed engine has at its place. Whole: in the end every
process is there, nothing waits, runs or is held, every gateway serves, and nothing is left when the system ends.</p>
<h2>Over time</h2>
<div class="pictures">
{"".join(render_picture(picture) for picture in draw_pictures(run))}</div>
<h2>New instances</h2>
{render_newcomer_table(run.story.newcomers(run.start), run.records)}
<h2>Faults</h2>
{render_table(FAULT_HEADINGS, list(fault_rows(run)))}
<p class="note">The pause is the longest of any stream until the next fault. Found: after so long the
registry held the process for dead.</p>
<h2>Settings</h2>
{render_settings(settings)}"""
    return render_page("livescale: processes died, streams went on", report.sentence(), report.good, body)
