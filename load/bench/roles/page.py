"""The report of `livescale bench roles`: one HTML file with what was measured, and pictures of it."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from livescale.load.bench.page import render_bench
from livescale.load.bench.record import Conditions, Record
from livescale.load.bench.roles.rows import Placing, RolesMeasurements
from livescale.load.pictures import BLUE, GREY, ORANGE, SvgPicture, draw, frame, place_legend
from livescale.load.report import save_page

COLOURS: dict[Placing, str] = {"colocated": GREY, "apart": BLUE, "switched": ORANGE}
GAPS = ("Time between tokens", "Share of all gaps of all runs that were at most so long, from the ninetieth in 100 on.")
FIRSTS = ("Time to first token", "Share of the requests of all runs whose first token came so soon.")
EXPOSED = ("KV after the first token", "Share of requests, one at a time, for which it took at most so long.")


def write_page(
    path: Path, done: RolesMeasurements, records: Sequence[Record], repeats: int, conditions: Conditions
) -> None:
    """Raises ClickException, which names the path."""
    save_page(path, render_roles(done, records, repeats, conditions))


def render_roles(done: RolesMeasurements, records: Sequence[Record], repeats: int, conditions: Conditions) -> str:
    """Return the report of the roles bench as one HTML page."""
    run = done.mixed[0].records
    intro = f"""An instance that prefills and one that decodes, against two that do both: {len(run)} requests of
{run[0].prompt_tokens} tokens with {run[0].asked_tokens} of output. Medians of {repeats}; every token was that of an
undisturbed engine."""
    return render_bench("livescale: prefill and decode apart", intro, draw_pictures(done), records, conditions)


def draw_pictures(done: RolesMeasurements) -> list[SvgPicture]:
    return [
        draw(*GAPS, lambda axes: paint_gaps(axes, done)),
        draw(*FIRSTS, lambda axes: paint_firsts(axes, done)),
        draw(*EXPOSED, lambda axes: paint_exposed(axes, done)),
    ]


def paint_gaps(axes: Axes, done: RolesMeasurements) -> None:
    for placing, colour in COLOURS.items():
        paint_shares(axes, [gap for run in done.placed(placing) for gap in run.gaps], colour, placing)
    finish(axes)
    axes.set_ylim(90, 100)


def paint_firsts(axes: Axes, done: RolesMeasurements) -> None:
    for placing, colour in COLOURS.items():
        ttfts = [record.ttft or 0.0 for run in done.placed(placing) for record in run.records]
        paint_shares(axes, ttfts, colour, placing)
    finish(axes)


def paint_exposed(axes: Axes, done: RolesMeasurements) -> None:
    paint_shares(axes, done.exposed, BLUE, "by layer")
    paint_shares(axes, done.by_request, GREY, "by request")
    finish(axes)


def paint_shares(axes: Axes, seconds: Sequence[float], colour: str, label: str) -> None:
    """The share of values that are at most so large, in hundredths."""
    shares = [100 * (number + 1) / len(seconds) for number in range(len(seconds))]
    axes.step([1e3 * value for value in sorted(seconds)], shares, where="post", color=colour, label=label)


def finish(axes: Axes) -> None:
    frame(axes, axes.get_xlim()[1], "%")
    axes.set_xlabel("ms")
    place_legend(axes)
