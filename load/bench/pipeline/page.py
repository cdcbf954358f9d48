"""The report of `livescale bench pipeline`: one HTML file with what was measured, and pictures of it."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from livescale.load.bench.page import render_bench
from livescale.load.bench.pipeline.rows import PipelineRun, chosen_runs
from livescale.load.bench.record import Conditions, Record
from livescale.load.pictures import BLUE, GREEN, GREY, ORANGE, SvgPicture, draw, frame, place_legend
from livescale.load.report import save_page

BIN_SECONDS, WIDTH_SECONDS = 0.1, 1.0
OFF, PIPELINE = {1: GREY, 2: ORANGE}, {1: BLUE, 2: GREEN}  # by how many nodes have the model
RATE = (
    "Tokens a second of all instances, over one second, from the first sender's start on. The dashed line is when the "
    "first pipeline should have had every block, the full one when it had; dotted is when all were whole."
)
FINISHED = ("Answered", "Requests that ended, from the first sender's start on; k is how many nodes had the model.")

Typical = Mapping[int, tuple[PipelineRun, PipelineRun]]  # off and pipeline, by sources


def write_page(
    path: Path, runs: Sequence[PipelineRun], records: Sequence[Record], repeats: int, conditions: Conditions
) -> None:
    """Raises ClickException, which names the path."""
    save_page(path, render_pipeline(runs, records, repeats, conditions))


def render_pipeline(
    runs: Sequence[PipelineRun], records: Sequence[Record], repeats: int, conditions: Conditions
) -> str:
    """Return the report of the pipeline bench as one HTML page."""
    intro = f"""Four instances more were asked for while {len(runs[0].records)} requests waited. Processes, bus and
links are real, engines are modelled. Medians of {repeats}."""
    return render_bench(
        "livescale: execution pipelines against stop-the-world", intro, draw_pictures(runs), records, conditions
    )


def draw_pictures(runs: Sequence[PipelineRun]) -> list[SvgPicture]:
    typical = {
        sources: (typical_run(runs, sources, "off"), typical_run(runs, sources, "pipeline"))
        for sources in sorted({run.sources for run in runs})
    }
    return [
        *(draw(f"Tokens, k = {sources}", RATE, partial(paint_rate, runs=both)) for sources, both in typical.items()),
        draw(*FINISHED, lambda axes: paint_finished(axes, typical)),
    ]


def typical_run(runs: Sequence[PipelineRun], sources: int, mode: str) -> PipelineRun:
    """The run of this case whose time to the first token is the median."""
    same = sorted(chosen_runs(runs, sources, mode), key=lambda run: run.first_token)
    return same[len(same) // 2]


def paint_rate(axes: Axes, runs: tuple[PipelineRun, PipelineRun]) -> None:
    for run in runs:
        token_at = sorted(at - run.begun for record in run.records for at in record.token_at)
        times = [BIN_SECONDS * number for number in range(int(token_at[-1] / BIN_SECONDS))]
        colour = colour_of(run)
        axes.plot(times, [rate_at(token_at, at) for at in times], color=colour, linewidth=1.6, label=run.mode)
        axes.axvline(run.load_seconds, color=colour, linestyle=":", linewidth=1.4)
        if run.formed:
            axes.axvline(run.predicted, color=colour, linestyle="--", linewidth=1.2)
            axes.axvline(run.ready, color=colour, linewidth=1.2)
    frame(axes, max(map(last_token, runs)), "tokens/s")
    place_legend(axes)


def rate_at(token_at: Sequence[float], at: float) -> float:
    """Tokens a second in the second around this time; the times are in order."""
    first, after = (bisect_left(token_at, at + side * WIDTH_SECONDS / 2) for side in (-1, 1))
    return (after - first) / WIDTH_SECONDS


def paint_finished(axes: Axes, typical: Typical) -> None:
    for sources, both in typical.items():
        for run in both:
            times = sorted(record.token_at[-1] - run.begun for record in run.records)
            label = f"{run.mode}, k = {sources}"
            axes.step([0.0, *times], range(len(times) + 1), where="post", color=colour_of(run), label=label)
    frame(axes, max(last_token(run) for both in typical.values() for run in both), "requests")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    place_legend(axes, columns=2)


def colour_of(run: PipelineRun) -> str:
    return (OFF if run.mode == "off" else PIPELINE)[run.sources]


def last_token(run: PipelineRun) -> float:
    return max(record.token_at[-1] for record in run.records) - run.begun
