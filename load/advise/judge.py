"""Whether a simulation held its SLOs, and what broke first where it did not. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from livescale.load.bench.systems.play import AnsweredRequest
from livescale.load.scenario.result import SimulationResult

TTFT, TBT, ENDS = "TTFT", "TBT", "no answer"


@dataclass(frozen=True)
class ShareSlos:
    """Seconds that a first token, and the mean of the gaps after it, may take for a `share` of all requests."""

    ttft: float
    tbt: float
    share: float

    def broken_by(self, request: AnsweredRequest) -> Iterator[str]:
        """Yield each SLO that a request did not keep."""
        if request.ttft > self.ttft:
            yield TTFT
        if request.mean_gap > self.tbt:
            yield TBT


@dataclass(frozen=True)
class Judged:
    """A run against its SLOs: the share of requests that kept both, what the first late one broke, and when it was due.

    Requests that failed or did not end are late, whenever that was.
    """

    result: SimulationResult
    share: float
    holds: bool
    broke: str = ""
    broke_at: float | None = None

    def tell(self) -> str:
        if self.holds:
            return "holds"
        at = "" if self.broke_at is None else f", first at {self.broke_at:.1f} s"
        return f"breaks: {self.broke}{at}"

    def row(self) -> list[str]:
        figures = self.result.models[-1]
        seconds = f"{self.result.used_seconds:.0f}"
        return [f"{100 * self.share:.2f} %", str(figures.ttft), str(figures.tbt), seconds, self.tell()]


HEADINGS = ("in time", "TTFT p50 / p90 / p99", "TBT p50 / p90 / p99", "GPU seconds", "")


def judge(result: SimulationResult, slos: ShareSlos) -> Judged:
    """Hold a run against its SLOs. One without requests holds them."""
    figures = result.models[-1]
    late = [(one.due, what) for one in result.run.requests for what in slos.broken_by(one)]
    in_time = sum(not any(slos.broken_by(one)) for one in result.run.requests)
    share = in_time / figures.requests if figures.requests else 1.0
    if share >= slos.share:
        return Judged(result, share, holds=True)
    if not late:
        return Judged(result, share, holds=False, broke=ENDS)
    at, what = min(late)
    return Judged(result, share, holds=False, broke=what, broke_at=at)
