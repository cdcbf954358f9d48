"""Draws what a bench of transfers measured: ratios beside their bars, and when blocks arrived."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from livescale.load.bench.record import Record
from livescale.load.bench.transfer.fleet import CarriedPlan
from livescale.load.pictures import BLUE, GREY, INK, LINES, STYLE, render_svg

# Lengths are inches.
WIDTH, ROW, PANEL, MARGIN = 12.0, 0.28, 2.2, 1.0
ACROSS = 3  # panels
RED = "#ef4444"
SMALL = 8
MOST = 10.0  # bars beyond it are cut off; their numbers say so


def draw_transfers(records: Sequence[Record], runs: Mapping[str, CarriedPlan]) -> str:
    """Return the picture as the text of an SVG file."""
    with_ratio = [record for record in records if record.ratio is not None]
    rows = -(-len(runs) // ACROSS)
    heights = [MARGIN + ROW * len(with_ratio), *[PANEL] * rows]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
        grid = figure.add_gridspec(1 + rows, ACROSS, height_ratios=heights)
        paint_ratios(figure.add_subplot(grid[0, :]), with_ratio)
        for number, (name, run) in enumerate(runs.items()):
            paint_arrivals(figure.add_subplot(grid[1 + number // ACROSS, number % ACROSS]), name, run)
        if runs:
            figure.supxlabel("Blocks that each target had; the diamond is the first execution pipeline", size=SMALL + 1)
        return render_svg(figure, f"Transfers: {len(with_ratio)} ratios, {len(runs)} plans carried out")


def paint_ratios(axes: Axes, records: Sequence[Record]) -> None:
    """A bar for each case, red where it missed its own, which is the dark line."""
    title = "Measured, as a multiple of what it is measured against; the line is the bar: blue kept it, red missed it"
    axes.set_title(title, size=SMALL + 2)
    for row, record in enumerate(records):
        assert record.ratio is not None
        number = f"{record.ratio:.2f}" if record.ratio <= MOST else f"{record.ratio:.3g}"
        axes.barh(row, min(record.ratio, MOST), color=RED if record.ok is False else BLUE if record.ok else GREY)
        # All in a column, where neither bars nor lines are in their way.
        axes.text(1.01, row, number, size=SMALL, va="center", transform=axes.get_yaxis_transform())
        if record.bar is not None:
            axes.plot([record.bar, record.bar], [row - 0.45, row + 0.45], color=INK, linewidth=1.5)
    axes.axvline(1.0, color=INK, linestyle=":", linewidth=1)
    axes.set_yticks(range(len(records)), [record.case for record in records], size=SMALL)
    axes.set_ylim(len(records) - 0.4, -0.6)
    axes.set_xlim(0, min(MOST, axes.get_xlim()[1]))
    axes.tick_params(axis="x", labelsize=SMALL)
    axes.grid(visible=False, axis="y")


def paint_arrivals(axes: Axes, name: str, run: CarriedPlan) -> None:
    """How many blocks each target had when; the diamond is the first execution pipeline."""
    for number, (_, times) in enumerate(sorted(run.ready.items())):
        ends = sorted(times.values())
        axes.step([0.0, *ends], range(len(ends) + 1), where="post", color=LINES[number % len(LINES)], linewidth=1)
    if run.plan.pipelines:
        axes.plot([run.executable], [0], marker="D", color=RED, clip_on=False)
    axes.set_title(f"{name}: {run.seconds:.2f} s", size=SMALL + 1)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds", size=SMALL)
    axes.set_ylabel("blocks", size=SMALL)
    axes.tick_params(labelsize=SMALL)
