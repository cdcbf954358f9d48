"""The report of `livescale bench live`: one HTML file with what was measured, and pictures of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from livescale.load.bench.live.rows import LiveMeasurements, middle
from livescale.load.bench.live.steps import LiveRun
from livescale.load.bench.page import render_bench
from livescale.load.bench.record import Conditions, Record
from livescale.load.pictures import BLUE, GREEN, GREY, INK, ORANGE, VIOLET, SvgPicture, draw, frame, place_legend
from livescale.load.report import save_page
from livescale.shared.messages.transfers import LiveMode

COLOURS: Mapping[LiveMode, str] = {"off": GREY, "best-effort": ORANGE, "zigzag": BLUE, "zigzag-ilp": VIOLET}
BIN_SECONDS, WIDTH_SECONDS = 0.1, 1.0
RATE = (
    "Work while parameters arrive",
    "Prompt tokens computed a second by both instances, over one second; dotted lines are when the new one is whole.",
)
FIRSTS = ("First tokens", "Requests that had their first token, from the decision on.")
SHARED = (
    "Who ran what",
    "In zigzag: layers that the new instance ran (blue; orange once it was whole), steps of the one that serves "
    "(green). The line is how many layers had arrived.",
)
CURVE = ("Slower links", "Mean time to first token by how many layers are run while one is loaded.")


def write_page(
    path: Path, done: LiveMeasurements, records: Sequence[Record], repeats: int, conditions: Conditions
) -> None:
    """Raises ClickException, which names the path."""
    save_page(path, render_live(done, records, repeats, conditions))


def render_live(done: LiveMeasurements, records: Sequence[Record], repeats: int, conditions: Conditions) -> str:
    """Return the report of the live bench as one HTML page."""
    intro = f"""A second instance was asked for while {len(done.runs["off"][0].records)} requests waited; loading a
layer took as long as running six. Medians of {repeats}; every token was that of an undisturbed engine."""
    return render_bench("livescale: live against stop-the-world", intro, draw_pictures(done), records, conditions)


def draw_pictures(done: LiveMeasurements) -> list[SvgPicture]:
    typical = {mode: typical_run(runs) for mode, runs in done.runs.items()}
    return [
        draw(*RATE, lambda axes: paint_rate(axes, typical, done.model_layers)),
        draw(*FIRSTS, lambda axes: paint_firsts(axes, typical)),
        draw(*SHARED, lambda axes: paint_shared(axes, typical["zigzag"], done.model_layers)),
        draw(*CURVE, lambda axes: paint_curve(axes, done.curve)),
    ]


def typical_run(runs: Sequence[LiveRun]) -> LiveRun:
    """The run whose mean time to the first token is the median."""
    return sorted(runs, key=lambda run: run.mean_ttft)[len(runs) // 2]


def paint_rate(axes: Axes, runs: Mapping[LiveMode, LiveRun], model_layers: int) -> None:
    for mode in ("off", "zigzag"):
        run = runs[mode]
        times = [BIN_SECONDS * number for number in range(int((run.ended - run.decided) / BIN_SECONDS))]
        rates = [tokens_in(run, at, model_layers) for at in times]
        axes.plot(times, rates, color=COLOURS[mode], linewidth=1.6, label=mode)
        axes.axvline(run.whole - run.decided, color=COLOURS[mode], linestyle=":", linewidth=1.4)
    frame(axes, max(run.ended - run.decided for run in runs.values()), "tokens/s")
    place_legend(axes)


def tokens_in(run: LiveRun, at: float, model_layers: int) -> float:
    """Prompt tokens computed a second, around `at` seconds after the decision."""
    start = run.decided + at - WIDTH_SECONDS / 2
    return run.layers_in(start, start + WIDTH_SECONDS) / model_layers / WIDTH_SECONDS


def paint_firsts(axes: Axes, runs: Mapping[LiveMode, LiveRun]) -> None:
    for mode, run in runs.items():
        times = sorted(at - run.decided for at in run.firsts)
        axes.step([0.0, *times], range(len(times) + 1), where="post", color=COLOURS[mode], linewidth=1.6, label=mode)
    frame(axes, max(run.ended - run.decided for run in runs.values()), "requests")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    place_legend(axes)


def paint_shared(axes: Axes, run: LiveRun, model_layers: int) -> None:
    """A box from the first to the last layer of each step; and when the block of each layer was there."""
    for one in run.executions:
        bottom, height = one.before / one.rows, one.layers / one.rows
        colour = BLUE if one.live else GREEN if one.worker == run.source else ORANGE
        bar = [(one.start - run.decided, one.end - one.start)]
        axes.broken_barh(
            bar, (bottom, height), color=colour, alpha=0.8, edgecolor=INK, linewidth=0 if one.live else 0.5
        )
    ready = [at - run.decided for at in run.ready[1:]]
    axes.step(ready, range(1, len(ready) + 1), where="post", color=INK, linewidth=1.2)
    frame(axes, run.ended - run.decided, "layers")
    axes.set_ylim(0, model_layers)


def paint_curve(axes: Axes, curve: Mapping[float, Mapping[LiveMode, Sequence[LiveRun]]]) -> None:
    factors = sorted(curve)
    for mode in curve[factors[0]]:
        means = [middle(curve[factor][mode], lambda run: run.mean_ttft) for factor in factors]
        axes.plot(factors, means, color=COLOURS[mode], marker="o", linewidth=1.6, label=mode)
    frame(axes, max(factors) + 1, "mean TTFT (s)")
    axes.set_xlabel("layers run while one is loaded")
    place_legend(axes)
