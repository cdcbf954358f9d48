"""Whether simulations lie within what live runs of the same scenario show. Pure.

Systems under load are chaotic: which of two messages came first changes all that follows, and one run may lie at the
edge of what runs do. So as many simulations as live runs are compared, and their median counts.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import mean, median

import msgspec

from livescale.load.bench.systems.play import AnsweredRequest
from livescale.load.scenario.result import ScaleFigures
from livescale.load.stats import percentile

MOST_USED = 0.7  # of the machine: a run that used more waited for itself
TIME_SLACK = 0.05  # seconds by which decisions may differ, however alike live runs are
SAME_SECONDS = 2.0  # what another run decides later than that, or earlier, is another decision
TTFT_SLACK, TBT_SLACK, USED_SLACK, BLOCKS_SLACK = 0.10, 0.05, 0.03, 0.05

Step = tuple[str, int, str]  # action, target and rule of a decision


class ObservedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to, live or simulated. Times are in seconds; `ready` counts from the decision to each block.

    `machine` is the share of all cores that were busy, and `stalls` says what stood still: None and empty for a
    simulation.
    """

    steps: list[Step]
    at: list[float]
    ttft: list[float]
    tbt: list[float]
    used_seconds: float
    ready: list[float]
    machine: float | None = None
    stalls: list[str] = []

    @classmethod
    def of(
        cls,
        scales: Sequence[ScaleFigures],
        requests: Sequence[AnsweredRequest],
        used_seconds: float,
        machine: float | None = None,
        stalls: Sequence[str] = (),
    ) -> "ObservedRun":
        told = sorted((one for one in scales if one.at >= 0), key=lambda one: one.at)  # without those of the start
        return cls(
            steps=[(one.action, one.target, one.rule) for one in told],
            at=[one.at for one in told],
            ttft=[one.ttft for one in requests],
            tbt=[gap for one in requests for gap in one.gaps],
            used_seconds=used_seconds,
            ready=[at for one in told for at in one.blocks],
            machine=machine,
            stalls=list(stalls),
        )

    @property
    def void(self) -> str | None:
        """Why the run says nothing; None where it does."""
        if self.machine is not None and self.machine > MOST_USED:
            return f"{100 * self.machine:.0f} % of the machine was busy, more than {100 * MOST_USED:.0f} %"
        return self.stalls[0] if self.stalls else None


class FidelityRow(msgspec.Struct, frozen=True):
    """One figure of the simulations against those of the live runs, and how far their median may be from them."""

    name: str
    simulated: str
    live: str
    tolerance: str
    holds: bool

    def cells(self) -> list[str]:
        return [self.name, self.simulated, self.live, self.tolerance, "holds" if self.holds else "differs"]


HEADINGS = ("", "simulated", "live", "tolerance", "")


def edit_distance(one: Sequence[Step], other: Sequence[Step]) -> int:
    """How many steps have to be put in, taken out or changed to make one sequence of the other."""
    before = list(range(len(other) + 1))
    for row, step in enumerate(one, 1):
        after = [row]
        for column, against in enumerate(other, 1):
            changed = before[column - 1] + (step != against)
            after.append(min(before[column] + 1, after[-1] + 1, changed))
        before = after
    return before[-1]


def compare(simulated: Sequence[ObservedRun], live: Sequence[ObservedRun]) -> list[FidelityRow]:
    """A row for each figure. Raises ValueError for fewer than two live runs: they show no spread."""
    if len(live) < 2:
        raise ValueError(f"{len(live)} live runs count, and their spread takes two: run more, on a quieter machine")
    return [
        compare_steps(simulated, live),
        compare_times(simulated, live),
        within("TTFT p50", simulated, live, lambda run: percentile(run.ttft, 50), TTFT_SLACK),
        within("TTFT p90", simulated, live, lambda run: percentile(run.ttft, 90), TTFT_SLACK),
        within("mean TBT", simulated, live, lambda run: mean(run.tbt) if run.tbt else None, TBT_SLACK),
        within("GPU seconds", simulated, live, lambda run: run.used_seconds, USED_SLACK),
        within("blocks ready", simulated, live, lambda run: mean(run.ready) if run.ready else None, BLOCKS_SLACK),
    ]


def compare_steps(simulated: Sequence[ObservedRun], live: Sequence[ObservedRun]) -> FidelityRow:
    """The decisions: no further from any live run than live runs are from one another."""
    most = max(edit_distance(one.steps, other.steps) for one, other in combinations(live, 2))
    found = [max(edit_distance(mine.steps, run.steps) for run in live) for mine in simulated]
    counts = ", ".join(str(len(run.steps)) for run in live)
    told = f"{spread(found)} edits away"
    return FidelityRow("decisions", told, f"{counts} steps", f"{most} edits", median(found) <= most)


def compare_times(simulated: Sequence[ObservedRun], live: Sequence[ObservedRun]) -> FidelityRow:
    """When decisions were made: half of those that two runs share are no further apart than between live runs."""
    apart = [seconds for pair in combinations(live, 2) if (seconds := time_between(*pair)) is not None]
    away = [found for mine in simulated if (found := time_from(mine, live)) is not None]
    if not away:
        none_made = not any(run.steps for run in (*simulated, *live))
        return FidelityRow("decision times", "none alike", "", "", none_made)
    slack = max([TIME_SLACK, *apart])
    between = f"{1000 * min(apart):.0f} to {1000 * max(apart):.0f} ms" if apart else "none alike"
    told = f"{spread([1000 * seconds for seconds in away])} ms away"
    return FidelityRow("decision times", told, between, f"{1000 * slack:.0f} ms", median(away) <= slack)


def time_from(simulated: ObservedRun, live: Sequence[ObservedRun]) -> float | None:
    """The most seconds between its decisions and those of a live run; None where it shares none with any."""
    return max((seconds for run in live if (seconds := time_between(simulated, run)) is not None), default=None)


def time_between(one: ObservedRun, other: ObservedRun) -> float | None:
    """The median of the seconds between decisions that both runs made; None where there are none."""
    apart = [abs(one.at[mine] - other.at[theirs]) for mine, theirs in shared_steps(one, other)]
    return median(apart) if apart else None


def shared_steps(one: ObservedRun, other: ObservedRun) -> list[tuple[int, int]]:
    """Pairs of equal decisions of two runs, by their numbers, in order: those with the fewest left out, and the least
    time within pairs. To leave out one of each costs as much as `SAME_SECONDS`, so pairs are no further apart."""
    alone = SAME_SECONDS / 2
    rows, columns = range(len(one.steps)), range(len(other.steps))
    costs = [[alone * column for column in range(len(other.steps) + 1)]]  # of what comes before both numbers
    for row in rows:
        costs.append([alone * (row + 1)])
        for column in columns:
            left_out = alone + min(costs[row][column + 1], costs[row + 1][column])
            costs[row + 1].append(min(left_out, costs[row][column] + pair_cost(one, other, row, column)))
    pairs, row, column = list[tuple[int, int]](), len(one.steps), len(other.steps)
    while row and column:
        if costs[row][column] == costs[row - 1][column - 1] + pair_cost(one, other, row - 1, column - 1):
            row, column = row - 1, column - 1
            pairs.append((row, column))
        elif costs[row][column] == alone + costs[row - 1][column]:
            row -= 1
        else:
            column -= 1
    return pairs[::-1]


def pair_cost(one: ObservedRun, other: ObservedRun, mine: int, theirs: int) -> float:
    """The seconds between two decisions; infinite where they are not equal."""
    return abs(one.at[mine] - other.at[theirs]) if one.steps[mine] == other.steps[theirs] else float("inf")


def within(
    name: str,
    simulated: Sequence[ObservedRun],
    live: Sequence[ObservedRun],
    value_of: Callable[[ObservedRun], float | None],
    slack: float,
) -> FidelityRow:
    """A figure, whose median may be a share of it outside what live runs had."""
    mine, theirs = known(simulated, value_of), known(live, value_of)
    told, tolerance = spread(mine) if mine else "nothing", f"{100 * slack:.0f} %"
    if not mine or len(theirs) < len(live):
        had = f"{len(theirs)} of {len(live)} runs had any"
        return FidelityRow(name, told, had, tolerance, not mine and not theirs)
    low, high = min(theirs), max(theirs)
    holds = low * (1 - slack) <= median(mine) <= high * (1 + slack)
    return FidelityRow(name, told, f"{low:.4g} to {high:.4g}", tolerance, holds)


def known(runs: Sequence[ObservedRun], value_of: Callable[[ObservedRun], float | None]) -> list[float]:
    return [value for run in runs if (value := value_of(run)) is not None]


def spread(values: Sequence[float]) -> str:
    """The median, and between what it lies."""
    low, high = min(values), max(values)
    return f"{low:.4g}" if low == high else f"{median(values):.4g} ({low:.4g} to {high:.4g})"
