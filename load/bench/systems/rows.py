"""What the runs of a comparison say: a summary of each system, and the ratios that are held against bars."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median

import msgspec

from livescale.load.bench.record import Record, measured
from livescale.load.bench.systems.play import AnsweredRequest, SystemRun
from livescale.load.bench.systems.settings import LADDER
from livescale.load.stats import percentile

BENCH = "systems"
OURS = ("+zigzag", "+parked", "+roles")
SLO_TIMES = 5.0  # an SLO is so many times the mean of the reference (BlitzScale 6.2)
WORSE = 1.05  # a step of the ladder may be so much worse
HEADINGS = (
    *("", "TTFT mean", "TTFT p99", "TBT mean", "TBT p99", "second token p99", "attainment"),
    *("GPU seconds", "host cache GB", "network GB", "answered", "faults"),
)


class Slo(msgspec.Struct, frozen=True):
    """The longest time to a first token, and the longest mean time between tokens of a request, in seconds."""

    ttft: float
    tbt: float

    def is_kept(self, request: AnsweredRequest) -> bool:
        return request.ttft <= self.ttft and request.mean_gap <= self.tbt


class SystemSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One system: each figure is the median of its runs. Times in seconds; `attainment` is the share of requests that
    kept both SLOs, None without a reference. The gap before the second token is not among the others."""

    system: str
    runs: int
    requests: int
    faults: int
    ttft_mean: float
    ttft_p99: float
    tbt_mean: float
    tbt_p99: float
    second_gap_p99: float
    attainment: float | None
    used_seconds: float
    cached_bytes: float
    network_bytes: float

    def row(self) -> list[str]:
        times = (self.ttft_mean, self.ttft_p99, self.tbt_mean, self.tbt_p99, self.second_gap_p99)
        kept = "" if self.attainment is None else f"{self.attainment:.1%}"
        sizes = (f"{self.used_seconds:.0f}", f"{self.cached_bytes / 1e9:.0f}", f"{self.network_bytes / 1e9:.0f}")
        return [self.system, *map(tell_ms, times), kept, *sizes, str(self.requests), str(self.faults)]


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written to the file of results. `slo` is None without `reference`."""

    trace: str
    window: str
    rate_scale: float
    workers: int
    topology: str
    engine_profile: str
    parameters_gb: float
    seeds: int
    reference: str | None
    slo: Slo | None
    systems: list[SystemSummary]
    records: list[Record]
    runs: list[SystemRun]


def tell_ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def by_system(runs: Sequence[SystemRun]) -> dict[str, list[SystemRun]]:
    return {name: [run for run in runs if run.system == name] for name in dict.fromkeys(run.system for run in runs)}


def find_slo(runs: Mapping[str, Sequence[SystemRun]]) -> tuple[str | None, Slo | None]:
    """The SLOs by the system that has all workers at all times, and its name; None where none was run."""
    for name in ("distserve-full", "vllm-full"):
        requests = [request for run in runs.get(name, ()) for request in run.requests]
        if requests:
            gaps = [gap for request in requests for gap in request.gaps]
            return name, Slo(SLO_TIMES * fmean(one.ttft for one in requests), SLO_TIMES * (fmean(gaps) if gaps else 1))
    return None, None


def later_gaps(run: SystemRun) -> list[float]:
    """All gaps but those before second tokens."""
    return [gap for request in run.requests for gap in request.gaps[1:]]


def second_gaps(run: SystemRun) -> list[float]:
    return [request.gaps[0] for request in run.requests if request.gaps]


def summarise(runs: Sequence[SystemRun], slo: Slo | None) -> SystemSummary:
    """Take the medians of one system's runs. What it attains is known only where there is an `slo`."""

    def middle(figure: Callable[[SystemRun], float | None]) -> float:
        return median(figure(run) or 0.0 for run in runs)

    def attainment(run: SystemRun) -> float:
        assert slo is not None
        answered = len(run.requests) + len(run.faults)
        return sum(map(slo.is_kept, run.requests)) / max(1, answered)

    return SystemSummary(
        system=runs[0].system,
        runs=len(runs),
        requests=sum(len(run.requests) for run in runs),
        faults=sum(len(run.faults) for run in runs),
        ttft_mean=middle(lambda run: fmean([one.ttft for one in run.requests] or [0.0])),
        ttft_p99=middle(lambda run: percentile([one.ttft for one in run.requests], 99)),
        tbt_mean=middle(lambda run: fmean(later_gaps(run) or [0.0])),
        tbt_p99=middle(lambda run: percentile(later_gaps(run), 99)),
        second_gap_p99=middle(lambda run: percentile(second_gaps(run), 99)),
        attainment=None if slo is None else middle(attainment),
        used_seconds=middle(lambda run: run.used_seconds),
        cached_bytes=middle(lambda run: max(held for _, held in run.cached)),
        network_bytes=middle(lambda run: sum(sent for _, sent in run.network)),
    )


def rows_of(summaries: Sequence[SystemSummary]) -> list[Record]:
    """The ratios of the paper's rows that can be made from these systems."""
    found = {one.system: one for one in summaries}
    ours = [found[name] for name in OURS if name in found]
    return [*figures(summaries), *ladder(found), *(row for one in ours for row in against_others(one, found))]


def figures(summaries: Sequence[SystemSummary]) -> Iterator[Record]:
    """The figures of each system, without a bar."""
    for one in summaries:
        yield measured(BENCH, f"{one.system}: TTFT mean", one.ttft_mean * 1e3, "ms")
        yield measured(BENCH, f"{one.system}: TBT p99", one.tbt_p99 * 1e3, "ms")
        yield measured(BENCH, f"{one.system}: used", one.used_seconds, "GPU s")


def ladder(found: Mapping[str, SystemSummary]) -> Iterator[Record]:
    """Each step of the ablation against the one before: it must not be worse."""
    steps = [found[name] for name in LADDER if name in found]
    for before, after in itertools.pairwise(steps):
        case = f"{after.system} to {before.system}: TTFT mean"
        yield measured(BENCH, case, after.ttft_mean * 1e3, "ms", before.ttft_mean * 1e3, at_most=WORSE)


def against_others(ours: SystemSummary, found: Mapping[str, SystemSummary]) -> Iterator[Record]:
    """The whole of BlitzScale against what is provisioned, and against what loads in no time."""
    for other, bar in (("distserve-full", 0.6), ("ideal", 1.15)):
        if other in found:
            against = found[other]
            yield measured(
                BENCH, f"{ours.system} to {other}: used", ours.used_seconds, "GPU s", against.used_seconds, at_most=bar
            )
            if ours.attainment is not None and against.attainment is not None:
                lost = 100 * (against.attainment - ours.attainment)
                case = f"{ours.system} to {other}: attainment lost, to a point"
                yield measured(BENCH, case, lost, "points", 1.0, at_most=1.0)
    if "distserve-half" in found:
        half = found["distserve-half"]
        case = f"{ours.system} to distserve-half"
        yield measured(BENCH, f"{case}: TTFT mean", ours.ttft_mean * 1e3, "ms", half.ttft_mean * 1e3, at_most=0.3)
        yield measured(BENCH, f"{case}: used", ours.used_seconds, "GPU s", half.used_seconds, at_most=1.05)
