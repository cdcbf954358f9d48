"""Evaluates scales in the mode `pipeline` against what their plans promised. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from livescale.load.bench.record import Record, measured
from livescale.load.bench.samples import BenchFailed
from livescale.load.records import RequestRecord
from livescale.services.planner.plans.execution_pipelines import pipeline_ready
from livescale.services.planner.targets import known_times
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.messages.transfers import LiveMode, Plan
from livescale.shared.model.latency import Latency, Work
from livescale.shared.runtime.settings import SwitchKv

BENCH = "pipeline"
FIRST_TOKEN = 1.1  # times the prediction, at most
PAUSE = 1.0  # of the prefill of a share, at most
FORMED_RUNS = 10  # at least so many, from two sources, tell whether pipelines form
MOST_GAIN = 0.05  # of the time to a first token, where no pipeline was formed
SWITCH_SECONDS = 1.5  # within this time all members take over the requests of a pipeline


@dataclass(frozen=True)
class PipelineRun:
    """A scale while requests waited, from `sources` that had the model. `switch_kv`: what workers were told."""

    mode: LiveMode
    sources: int
    scale: ScaleRecord
    records: Sequence[RequestRecord]
    switch_kv: SwitchKv = "auto"

    @property
    def begun(self) -> float:
        """When the first sender was told to send, in seconds since the epoch."""
        return self._phases("commanded")[0]

    @property
    def load_seconds(self) -> float:
        return max(self._phases("whole")) - self.begun

    @property
    def predicted(self) -> float:
        """Seconds until the first pipeline of the schedule has every block between its members."""
        times = [one.predicted for one in self._plan.pipelines if one.predicted is not None]
        if not times:
            raise BenchFailed("no pipeline was planned, or nothing predicted of it")
        return min(times)

    @property
    def ready(self) -> float:
        """Seconds until the first of them had. Where that made one of them whole, too, no pipeline was formed."""
        arrived = {worker: known_times(times) for worker, times in self.scale.arrived.items()}
        return min(pipeline_ready(one.members, arrived) for one in self._plan.pipelines) - self.begun

    @property
    def first_whole(self) -> float:
        """Seconds until the first new instance had every block itself."""
        arrived = map(known_times, self.scale.arrived.values())
        return min(max(times.values()) for times in arrived) - self.begun

    @property
    def window(self) -> float:
        """Seconds in which the first pipeline has every block but no instance does: the most that a pipeline can
        gain."""
        return max(0.0, self.first_whole - self.ready)

    @property
    def first_token(self) -> float:
        """Seconds until a new instance had made one, as the leader of a pipeline or by itself."""
        return min(self._phases("first_token")) - self.begun

    @property
    def formed(self) -> int:
        """The number of pipelines of the plan that formed and ran."""
        return sum(one.running_at is not None for one in self.scale.pipelines)

    @property
    def all_formed(self) -> bool:
        """Whether all that were planned ran, and there was one."""
        return 0 < len(self._plan.pipelines) <= self.formed

    @property
    def unformed(self) -> list[str]:
        """The pipelines of the plan that did not run, and why."""
        return [f"{one.id}: {one.reason}" for one in self.scale.pipelines if one.running_at is None]

    @property
    def left_out(self) -> list[str]:
        """Why workers that had the model were not made sources."""
        return [reason for reason in self._plan.reasons if reason.startswith("not from")]

    @property
    def finished_loading(self) -> int:
        """Requests that ended before all new instances were whole."""
        whole = max(self._phases("whole"))
        return sum(record.token_at[-1] <= whole for record in self.records)

    @property
    def longest_pause(self) -> float:
        """The longest time between two tokens of one request while pipelines end, whatever the cause.

        It covers all pauses that begin before every member has taken over its requests, and end after the members were
        told to.
        """
        gaps = [(before, after) for record in self.records for before, after in pairwise(record.token_at)]
        ends = [
            (one.switching_at or one.ended_at, one.ended_at + SWITCH_SECONDS)
            for one in self.scale.pipelines
            if one.running_at is not None and one.ended_at is not None
        ]
        spanning = (after - before for before, after in gaps for begin, end in ends if before <= end and after >= begin)
        return max(spanning, default=0.0)

    @property
    def _plan(self) -> Plan:
        """The plan of the scale. Raises BenchFailed where it has none."""
        if self.scale.plan is None:
            raise BenchFailed(f"{self.scale.id} has no plan")
        return self.scale.plan

    def _phases(self, name: str) -> list[float]:
        return [phase.at for phase in self.scale.phases if phase.name == name]


def prefill_seconds(latency: Latency, speed: float, prompts: int, tokens: int) -> float:
    """How long a modelled step takes that prefills so many prompts of so many tokens."""
    return latency.seconds(Work(prefill_tokens=prompts * tokens, prefill_squares=prompts * tokens**2)) / speed


def rows(runs: Sequence[PipelineRun], latency: Latency, speed: float, prompt: int, share: int) -> Iterator[Record]:
    """The rows of the table; values are medians. `prompt` is the tokens of each prompt, `share` the requests that each
    worker of a pipeline takes over.

    When a pipeline ends, no stream should pause longer than one step takes that computes such a share and nothing else.
    Each worker's first step would take that long if it had none of the KV.
    """
    prefill = prefill_seconds(latency, speed, 1, prompt)
    firsts = {}
    for sources in sorted({run.sources for run in runs}):
        live, off = (chosen_runs(runs, sources, mode) for mode in ("pipeline", "off"))
        case = f"k = {sources}"
        predicted = median(run.predicted for run in live)
        firsts[sources] = median(run.first_token for run in live)
        yield measured(BENCH, f"{case}: load", median(run.load_seconds for run in live), "s")
        yield measured(BENCH, f"{case}: first pipeline ready", median(run.ready for run in live), "s", predicted)
        promised = predicted + prefill
        yield measured(BENCH, f"{case}: pipelines formed", median(run.formed for run in live), "pipelines")
        yield from forming(runs, sources)
        yield measured(BENCH, f"{case}: first token", firsts[sources], "s", promised, at_most=FIRST_TOKEN)
        finished, less = (median(run.finished_loading for run in each) for each in (live, off))
        yield measured(BENCH, f"{case}: finished while it loads", finished, "requests", less)
        again = prefill_seconds(latency, speed, share, prompt)
        for switch_kv, told in (("auto", ""), ("move", ", KV moved"), ("recompute", ", KV computed again")):
            ended = [run.longest_pause for run in chosen_runs(runs, sources, "pipeline", switch_kv) if run.formed]
            if ended:
                # To have KV moved over any link, however slow, is not what `auto` does.
                pause, bar = f"{case}: longest pause as pipelines end{told}", None if switch_kv == "move" else PAUSE
                yield measured(BENCH, pause, median(ended), "s", again, at_most=bar)
    few, *more = firsts
    for sources in more:
        case = f"k = {sources} before k = {few}"
        yield measured(BENCH, case, firsts[sources], "s", firsts[few], at_most=1.0)


def forming(runs: Sequence[PipelineRun], sources: int) -> Iterator[Record]:
    """From several sources pipelines form in every run. From one the first node is whole soon after they could: where
    none is formed, how much sooner a first token could have come, with no time at all for a pipeline to be formed."""
    live = [run for run in runs if run.sources == sources and run.mode == "pipeline"]
    formed = sum(run.all_formed for run in live)
    case = f"k = {sources}: runs in which all pipelines formed"
    yield measured(BENCH, case, formed, "runs", len(live), at_least=1.0 if sources > 1 else None)
    without = [run for run in live if not run.formed]
    if sources == 1 and without:
        gain, first = median(run.window for run in without), median(run.first_token for run in without)
        case = f"k = {sources}: most that a pipeline could have gained"
        yield measured(BENCH, case, gain, "s", first, at_most=MOST_GAIN)


def chosen_runs(runs: Sequence[PipelineRun], sources: int, mode: str, switch_kv: str = "auto") -> list[PipelineRun]:
    """The runs of one case: a number of sources, a mode, and a way to move KV."""
    return [run for run in runs if (run.sources, run.mode, run.switch_kv) == (sources, mode, switch_kv)]
