"""Draws what clients get while an instance is added: tokens above, the parameters that arrive below."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from livescale.load.outcome import Outcome
from livescale.load.pictures import BLUE, GREY, INK, SvgPicture, draw_figure
from livescale.load.records import RequestRecord
from livescale.load.story import Newcomer, request_id

TITLE = "Tokens while parameters arrive"
DESCRIPTION = (
    "Tokens a second that clients got, above the blocks of parameters that were at the new instance. "
    "Blue: of requests of which it ran layers before it was whole."
)
SIZE_INCHES = (6.4, 4.3)
BEFORE_SECONDS, AFTER_SECONDS = 1.0, 0.5
SLOT_SECONDS = 0.25
ROW_POINTS = 12
HEADROOM = 1.5  # the names of moments are above the blocks


def draw_arrival(outcome: Outcome) -> SvgPicture | None:
    """The picture of the first instance that shared a request while it loaded, else of the first that became whole.
    None where no instance did."""
    newcomer = choose_newcomer(outcome.newcomers(), outcome.records)
    if newcomer is None:
        return None
    return draw_figure(TITLE, DESCRIPTION, lambda figure: paint_arrival(figure, newcomer, outcome.records), SIZE_INCHES)


def choose_newcomer(newcomers: Sequence[Newcomer], records: Sequence[RequestRecord]) -> Newcomer | None:
    whole = [each for each in newcomers if each.blocks and each.whole_at is not None]
    shared = [each for each in whole if each.shared_token_at(records) is not None]
    return next(iter(shared or whole), None)


def paint_arrival(figure: Figure, newcomer: Newcomer, records: Sequence[RequestRecord]) -> None:
    """Paint both axes. They end with the instance's first token of its own: which tokens are its is not known later."""
    above, below = figure.subplots(2, sharex=True, height_ratios=(2, 3))
    end = (newcomer.since_decision(newcomer.first_token_at or newcomer.whole_at) or 0.0) + AFTER_SECONDS
    paint_tokens(above, newcomer, records, end)
    paint_blocks(below, newcomer, end)
    paint_moments((above, below), newcomer, records)
    below.set_xlim(-BEFORE_SECONDS, end)
    below.set_xlabel("seconds since the decision to add an instance")


def tokens_a_second(times: Iterable[float], edges: Sequence[float]) -> Sequence[float]:
    counts, _ = np.histogram(list(times), bins=list(edges))
    return [float(count) / SLOT_SECONDS for count in counts]


def paint_tokens(axes: Axes, newcomer: Newcomer, records: Sequence[RequestRecord], end: float) -> None:
    whole_at = newcomer.whole_at or newcomer.decided_at
    with_layers = {each.request_id for each in newcomer.hand_offs if each.layers and each.at <= whole_at}
    edges = [float(edge) for edge in np.arange(-BEFORE_SECONDS, end + SLOT_SECONDS, SLOT_SECONDS)]
    times: dict[bool, list[float]] = {True: [], False: []}
    for record in records:
        times[request_id(record) in with_layers] += [at - newcomer.decided_at for at in record.token_at]
    shared, others = (tokens_a_second(times[each], edges) for each in (True, False))
    where: dict[str, Any] = {"width": SLOT_SECONDS, "align": "edge", "linewidth": 0, "zorder": 2}
    axes.bar(edges[:-1], others, color=GREY, label="of other requests", **where)
    axes.bar(
        edges[:-1], shared, bottom=others, color=BLUE, label="of requests that the new instance worked on", **where
    )
    axes.set_ylim(0, 1.1 * max(1.0, *(low + high for low, high in zip(others, shared, strict=True))))
    axes.set_ylabel("tokens/s")
    axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0.0, 1.0), handlelength=1.0, columnspacing=1.2)


def paint_blocks(axes: Axes, newcomer: Newcomer, end: float) -> None:
    points = [(at - newcomer.decided_at, float(ready)) for at, ready in newcomer.blocks]
    times, heights = [0.0, *(at for at, _ in points), end], [0.0, *(ready for _, ready in points), points[-1][1]]
    axes.fill_between(times, heights, step="post", color=BLUE, alpha=0.25, linewidth=0)
    axes.step(times, heights, where="post", color=BLUE, linewidth=1.8)
    axes.set_ylim(0, heights[-1] * HEADROOM)
    axes.set_yticks(
        [tick for tick in MaxNLocator(nbins=5, integer=True).tick_values(0, heights[-1]) if tick <= heights[-1]]
    )
    axes.set_ylabel(f"blocks there, of {newcomer.total_blocks or heights[-1]:.0f}")


def paint_moments(axes: tuple[Axes, Axes], newcomer: Newcomer, records: Sequence[RequestRecord]) -> None:
    """A line through both axes for each moment. Each has its name in a row of its own above the blocks, as moments may
    be close to each other."""
    _, below = axes
    ready = max(count for _, count in newcomer.blocks)
    moments = (
        ("its first layer is run", newcomer.first_layer_at),
        ("first token it took part in", newcomer.shared_token_at(records)),
        ("whole", newcomer.whole_at),
    )
    known = [(name, since) for name, at in moments if (since := newcomer.since_decision(at)) is not None]
    for row, (name, since) in enumerate(known):
        for each in axes:
            each.axvline(since, color=INK, linestyle=":", linewidth=1.2)
        place: dict[str, Any] = {"xytext": (3, -2 - ROW_POINTS * row), "textcoords": "offset points", "va": "top"}
        below.annotate(f"{since:.1f} s: {name}", (since, ready * HEADROOM), fontsize=9, **place)
