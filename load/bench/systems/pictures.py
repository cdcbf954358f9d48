"""Pictures of a comparison, as in the papers: latencies over time and as distributions, and what was used."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from livescale.load.bench.systems.play import SystemRun
from livescale.load.bench.systems.rows import SystemSummary, later_gaps, second_gaps
from livescale.load.bench.systems.settings import LADDER
from livescale.load.pictures import (
    BLUE,
    GREEN,
    GREY,
    LINES,
    ORANGE,
    Points,
    SvgPicture,
    draw,
    frame,
    place_legend,
    running_percentile,
    split,
)

Runs = Mapping[str, Sequence[SystemRun]]
COLOURS = (*LINES, GREY, "#a16207", "#db2777", "#65a30d", "#0f766e", "#7c2d12", "#4338ca")
FIRST = ", of the first seed"


def draw_pictures(runs: Runs, summaries: Sequence[SystemSummary]) -> list[SvgPicture]:
    """All pictures, in the order in which they are read."""
    return [
        *draw_runs(runs, FIRST),
        draw("GPU time", "Worker seconds in use, medians.", lambda axes: paint_used(axes, summaries)),
        draw("The ablation", "Time to first token by the steps of BlitzScale, medians of all runs.", ladder(summaries)),
    ]


def draw_runs(runs: Runs, which: str) -> list[SvgPicture]:
    """The pictures of what happened in runs; `which` ends what is told of lines over time: whose they are."""
    over_time = f"Median of each 2 s{which}"
    shares = "Share of all runs that took at most so long"
    return [
        draw("TTFT over time", f"{over_time}, by when requests were due.", lambda axes: paint_ttft(axes, runs)),
        draw("TTFT", f"{shares}: requests, by their first token.", lambda axes: paint_shares(axes, runs, ttfts)),
        draw("TBT over time", f"Highest of each 2 s{which}.", lambda axes: paint_tbt(axes, runs)),
        draw("TBT", f"{shares}: gaps, but for those before second tokens.", tails(runs, later_gaps)),
        draw("Before the second token", f"{shares}: the gap in which a request may move.", tails(runs, second_gaps)),
        draw("Workers in use", f"Loading and draining count{which}.", lambda axes: paint_workers(axes, runs)),
        draw("Host caches", f"Gigabytes in the memory of all hosts{which}.", lambda axes: paint_cached(axes, runs)),
        draw("Network", f"Gigabytes sent between machines{which}.", lambda axes: paint_network(axes, runs)),
    ]


def colour_of(runs: Runs, name: str) -> str:
    return COLOURS[list(runs).index(name) % len(COLOURS)]


def paint_lines(axes: Axes, runs: Runs, points: Callable[[SystemRun], Points], label: str, *, steps: bool) -> None:
    """One line for each system, of its first run."""
    for name, of in runs.items():
        style = "steps-post" if steps else "default"
        axes.plot(*split(points(of[0])), color=colour_of(runs, name), linewidth=1.2, label=name, drawstyle=style)
    frame(axes, max(of[0].seconds for of in runs.values()), label)
    place_legend(axes, 4)


def paint_ttft(axes: Axes, runs: Runs) -> None:
    def points(run: SystemRun) -> Points:
        return running_percentile([(one.due, one.ttft) for one in run.requests], 50)

    paint_lines(axes, runs, points, "TTFT (s)", steps=False)


def paint_tbt(axes: Axes, runs: Runs) -> None:
    def points(run: SystemRun) -> Points:
        found = Points()
        for one in run.requests:
            times = accumulate(one.gaps, initial=one.due + one.ttft)
            found += [(at, gap) for at, gap in zip(list(times)[1:], one.gaps, strict=True)]
        return running_percentile(found, 100)

    paint_lines(axes, runs, points, "TBT (s)", steps=False)


def paint_workers(axes: Axes, runs: Runs) -> None:
    paint_lines(axes, runs, lambda run: until_end(run, run.workers), "workers", steps=True)


def paint_cached(axes: Axes, runs: Runs) -> None:
    def points(run: SystemRun) -> Points:
        return [(at, held / 1e9) for at, held in until_end(run, run.cached)]

    paint_lines(axes, runs, points, "GB", steps=True)


def paint_network(axes: Axes, runs: Runs) -> None:
    def points(run: SystemRun) -> Points:
        sums = accumulate(sent / 1e9 for _, sent in run.network)
        return until_end(run, [(0.0, 0.0), *zip((at for at, _ in run.network), sums, strict=True)])

    paint_lines(axes, runs, points, "GB", steps=True)


def until_end(run: SystemRun, steps: Points) -> Points:
    """The steps within the window, the last of which lasts until its end."""
    within = [(at, value) for at, value in steps if at <= run.seconds]
    return [*within, (run.seconds, within[-1][1])]


def ttfts(run: SystemRun) -> list[float]:
    return [request.ttft for request in run.requests]


def tails(runs: Runs, values: Callable[[SystemRun], list[float]]) -> Callable[[Axes], None]:
    return lambda axes: paint_shares(axes, runs, values)


def paint_shares(axes: Axes, runs: Runs, values: Callable[[SystemRun], list[float]]) -> None:
    """The distribution of each system's values in milliseconds, all of its runs together."""
    for name, of in runs.items():
        ordered = sorted(1e3 * value for run in of for value in values(run))
        shares = [100 * (number + 1) / len(ordered) for number in range(len(ordered))]
        axes.plot(ordered, shares, color=colour_of(runs, name), linewidth=1.2, label=name)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", labelsize=8)
    axes.set_ylim(0, 100)
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("% at most so long")
    place_legend(axes, 4)


def paint_used(axes: Axes, summaries: Sequence[SystemSummary]) -> None:
    names = [one.system for one in summaries]
    axes.barh(names, [one.used_seconds for one in summaries], color=BLUE, alpha=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("GPU seconds")


def ladder(summaries: Sequence[SystemSummary]) -> Callable[[Axes], None]:
    """Paints the steps of the ablation that were run."""
    steps = [one for name in LADDER for one in summaries if one.system == name]

    def paint(axes: Axes) -> None:
        places = range(len(steps))
        axes.bar([at - 0.2 for at in places], [one.ttft_mean for one in steps], 0.4, color=GREEN, label="mean")
        axes.bar([at + 0.2 for at in places], [one.ttft_p99 for one in steps], 0.4, color=ORANGE, label="p99")
        axes.set_xticks(list(places), [one.system for one in steps])
        axes.set_ylabel("TTFT (s)")
        place_legend(axes)

    return paint
