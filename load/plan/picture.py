"""A plan as a picture: which node sends to which, and when each block of every target is complete."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

import matplotlib as mpl
import msgspec
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Rectangle

from livescale.load.pictures import BLUE, GREEN, GREY, INK, ORANGE, STYLE, VIOLET, render_svg
from livescale.load.plan.dry_run import DryRun
from livescale.load.plan.view import headline
from livescale.services.planner.plans.plan import Over

# All lengths are inches. Beside each other: arrows, names, blocks over time, the colours of blocks.
WIDTH, ARROWS, KEY, MARGIN, LETTER = 12.0, 1.2, 1.0, 0.3, 0.075
ROW, TITLE, LINE, AXIS = 0.24, 0.75, 0.2, 0.65
MOST_ROWS = 64
PAST_END = 1.02  # how far the time axis goes
COLOURS: dict[Over, str] = {"network": BLUE, "domain": GREEN, "host_link": ORANGE, "disk": VIOLET, "local": GREY}
# Without its first, dark quarter, which is not to be seen on a dark page.
BLOCKS = ListedColormap(mpl.colormaps["viridis"](range(64, 256)))
RED = "#ef4444"
SMALL, PLAIN = 8, 10


class NodeRow(msgspec.Struct, frozen=True):
    """A node and its blocks: when each began, and was whole."""

    id: str
    label: str
    blocks: tuple[tuple[int, float, float], ...] = ()


def draw_plan(run: DryRun) -> str:
    """Return the picture as the text of an SVG file."""
    shown = list(islice(make_rows(run), MOST_ROWS))
    left_out = len(run.plan.targets) - sum(bool(row.blocks) for row in shown)
    room = 0.1 + LETTER * max(len(row.label) for row in shown)
    height = TITLE + (LINE if left_out else 0) + ROW * len(shown) + AXIS
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height))
        left, low = (MARGIN + ARROWS + room) / WIDTH, AXIS / height
        tall = ROW * len(shown) / height
        time = figure.add_axes((left, low, 1 - left - (KEY + MARGIN) / WIDTH, tall))
        arrows = figure.add_axes((MARGIN / WIDTH, low, (ARROWS + room) / WIDTH, tall))
        paint_time(time, run, shown)
        paint_arrows(arrows, run, shown, room)
        paint_key(figure.add_axes((1 - KEY / WIDTH, low, 0.16 / WIDTH, tall)), len(run.block_bytes))
        write_title(figure, run, left_out, height)
        return render_svg(figure, f"Plan: {headline(run)}")


def make_rows(run: DryRun) -> Iterator[NodeRow]:
    """Holders that send, each before the first domain that has something from it; targets in the order of the plan."""
    domain = {target: run.multicast.nodes[target].group for target in run.plan.targets}
    holders: dict[str, list[str]] = defaultdict(list)
    lanes: dict[str, list[str]] = defaultdict(list)
    seen = set(run.plan.targets)
    for flow in run.plan.flows:
        if flow.sender not in seen:
            holders[domain[flow.receiver]].append(flow.sender)
            seen.add(flow.sender)
        if flow.lanes > 1 and flow.over != "domain":
            lanes[flow.receiver].append(f"{flow.lane + 1}")
    for target in run.plan.targets:
        yield from (NodeRow(holder, name_holder(run, holder)) for holder in holders.pop(domain[target], ()))
        notes = [f"lane {', '.join(lanes[target])}"] if target in lanes else []
        notes += ["live"] if target in run.plan.tails else []
        label = f"{target} ({', '.join(notes)})" if notes else target
        yield NodeRow(target, label, tuple(spans(run, target)))


def name_holder(run: DryRun, holder: str) -> str:
    place = run.multicast.nodes[holder].place
    return holder if place == "worker" else f"{holder} {'memory' if place == 'host' else 'disk'}"


def spans(run: DryRun, target: str) -> Iterator[tuple[int, float, float]]:
    """A block begins when the one before is whole; in a schedule, and at first, only as long before as it takes."""
    times = sorted((time, block) for block, time in run.prediction.ready[target].items())
    nic_in = run.multicast.nodes[target].at.nic_in
    has_schedule = any(flow.steps for flow in run.plan.flows)
    usual = (times[-1][0] - times[0][0]) / max(1, len(times) - 1)
    begun = max(0.0, times[0][0] - (usual or times[0][0]))
    for time, block in times:
        yield block, max(begun, time - run.block_bytes[block] / nic_in) if has_schedule else begun, time
        begun = time


def paint_time(axes: Axes, run: DryRun, rows: Sequence[NodeRow]) -> None:
    shade = Normalize(0, max(1, len(run.block_bytes) - 1))
    patches, colours = [], []
    for number, row in enumerate(rows):
        for block, begun, whole in row.blocks:
            patches.append(Rectangle((begun, number - 0.36), whole - begun, 0.72))
            colours.append(BLOCKS(shade(block)))
        if not row.blocks:
            patches.append(Rectangle((0, number - 0.06), run.prediction.seconds, 0.12))
            colours.append(mpl.colors.to_rgba(GREY, 0.5))
    axes.add_collection(PatchCollection(patches, facecolors=colours, edgecolors="none"))
    for pipeline in run.pipelines:
        numbers = [number for number, row in enumerate(rows) if row.id in pipeline.nodes]
        axes.plot([pipeline.ready_at] * len(numbers), numbers, color=RED, marker="D", markersize=4, linewidth=1)
    axes.axvline(run.bound_seconds, color=INK, linestyle=":", linewidth=1.2)
    axes.set_xlim(0, run.prediction.seconds * PAST_END)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xlabel("seconds", size=SMALL)
    axes.tick_params(axis="x", labelsize=SMALL)
    axes.grid(visible=True, axis="x")


def paint_arrows(axes: Axes, run: DryRun, rows: Sequence[NodeRow], room: float) -> None:
    """Names at the right; left of them an arrow for each pair that a link joins, and a line along each domain."""
    position = {row.id: number for number, row in enumerate(rows)}
    axes.set_xlim(0, ARROWS + room)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.axis("off")
    for number, row in enumerate(rows):
        axes.text(ARROWS + room - 0.08, number, row.label, size=SMALL, ha="right", va="center")
    for sender, receiver, over in dict.fromkeys((flow.sender, flow.receiver, flow.over) for flow in run.plan.flows):
        if sender in position and receiver in position:
            start, end = position[sender], position[receiver]
            if over == "domain":
                axes.plot([ARROWS, ARROWS], [start, end], color=COLOURS[over], linewidth=3, solid_capstyle="round")
            else:
                axes.add_patch(arrow(start, end, COLOURS[over]))


def arrow(start: int, end: int, colour: str) -> FancyArrowPatch:
    """To the left of the names, farther out the farther it goes."""
    rows = end - start
    depth = min(0.9 * ARROWS, 0.12 + 0.06 * abs(rows))
    x = ARROWS - 0.06
    return FancyArrowPatch(
        (x, start),
        (x, end),
        connectionstyle=f"arc3,rad={2 * depth / (ROW * rows)}",
        arrowstyle="-|>",
        mutation_scale=8,
        color=colour,
        linewidth=1,
    )


def paint_key(axes: Axes, blocks: int) -> None:
    """The colours of blocks, the first on top."""
    axes.imshow([[index] for index in range(256)], aspect="auto", cmap=BLOCKS)
    axes.set_xticks([])
    axes.yaxis.tick_right()
    axes.set_yticks([0, 255], ["block 0", f"block {blocks - 1}"], size=SMALL)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def write_title(figure: Figure, run: DryRun, left_out: int, height: float) -> None:
    lines = [headline(run)]
    if left_out:
        lines.append(f"{left_out} more targets are not drawn")
    for number, line in enumerate(lines):
        figure.text(MARGIN / WIDTH, 1 - (0.25 + LINE * number) / height, line, size=PLAIN, va="center")
    used = dict.fromkeys(flow.over for flow in run.plan.flows)
    handles = [Line2D([], [], color=COLOURS[over], linewidth=2, label=over.replace("_", " ")) for over in used]
    if run.bound_seconds <= run.prediction.seconds * PAST_END:
        handles.append(Line2D([], [], color=INK, linestyle=":", label="all bytes over one NIC"))
    if run.pipelines:
        handles.append(Line2D([], [], color=RED, marker="D", markersize=4, label="a pipeline is executable"))
    place = (MARGIN / WIDTH, 1 - (0.38 + LINE * (len(lines) - 1)) / height)
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=place, ncols=len(handles), fontsize=SMALL)
