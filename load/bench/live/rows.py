"""Evaluates the runs of `livescale bench live` as records. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median

from livescale.load.bench.live.steps import LiveRun
from livescale.load.bench.record import Record, measured
from livescale.load.bench.samples import BenchFailed
from livescale.services.worker.live.policy import LiveTask
from livescale.services.worker.live.simulation import Simulation, simulate
from livescale.shared.messages.transfers import LiveMode

BENCH = "live"
SLACK_SECONDS = 0.05
PAIR, FINISHED, AS_PREDICTED, QUIET = 1.7, 1.4, 0.9, 0.98  # at least
TTFT: Mapping[LiveMode, float] = {"off": 0.8, "best-effort": 0.75}  # of zigzag against these, at most

Runs = Mapping[LiveMode, Sequence[LiveRun]]


@dataclass
class LiveMeasurements:
    """`layer`: seconds of a layer of one request, undisturbed, and `long_layer` of one with as many tokens as a
    hand-off is measured with. `curve`: runs by how many layers are run while one is loaded."""

    block_bytes: Sequence[int]
    layer: float
    long_layer: float = 0.0
    rate: float = 0.0
    runs: dict[LiveMode, list[LiveRun]] = field(default_factory=dict)
    streams: dict[LiveMode, list[LiveRun]] = field(default_factory=dict)
    quiet: dict[LiveMode, list[float]] = field(default_factory=dict)  # requests a second
    hand_offs: list[float] = field(default_factory=list)
    curve: dict[float, dict[LiveMode, list[LiveRun]]] = field(default_factory=dict)

    @property
    def model_layers(self) -> int:
        return len(self.block_bytes) - 2


def rows(done: LiveMeasurements) -> Iterator[Record]:
    """All but the curve's. Raises BenchFailed where live scaling ran no layer."""
    zigzag, off = done.runs["zigzag"], done.runs["off"]
    yield measured(BENCH, "a layer, undisturbed", done.layer * 1e3, "ms")
    yield measured(BENCH, "a layer loads", done.block_bytes[1] / done.rate * 1e3, "ms", done.layer * 1e3)
    for mode, runs in done.runs.items():
        yield measured(BENCH, f"load, {mode}", middle(runs, lambda run: run.load_seconds), "s", load_seconds(done))
    yield from firsts(done, zigzag)
    rate = middle(zigzag, second_half)
    yield measured(BENCH, "layers/s of both", rate, "layers/s", middle(off, second_half), at_least=PAIR)
    tail = middle(zigzag, whole_second_half)
    yield measured(BENCH, "layers/s of both, idle tail included", tail, "layers/s", middle(off, whole_second_half))
    ideal = middle(zigzag, lambda run: second_half_as_predicted(done, run))
    yield measured(BENCH, "layers/s of both, ideal", ideal, "layers/s", 1 / done.layer)
    finished = middle(zigzag, lambda run: run.finished_loading)
    less = middle(off, lambda run: run.finished_loading)
    yield measured(BENCH, "finished while it loads", finished, "requests", less, at_least=FINISHED)
    yield from ttfts(done.runs)
    layers, promised = middle(zigzag, executed), middle(zigzag, lambda run: predicted(done, run))
    yield measured(BENCH, "layers/s while it loads, to plan", layers, "layers/s", promised, at_least=AS_PREDICTED)
    if not done.hand_offs:
        raise BenchFailed("no request was handed over with layers done; run it again on an idle machine")
    hand_off = median(done.hand_offs) * 1e3
    yield measured(BENCH, "hand-off, 512 tokens", hand_off, "ms", done.long_layer * 1e3, at_most=1.0)
    calm, still = median(done.quiet["zigzag"]), median(done.quiet["off"])
    yield measured(BENCH, "nothing scales", calm, "requests/s", still, at_least=QUIET)
    yield from streams(done.streams)


def firsts(done: LiveMeasurements, runs: Sequence[LiveRun]) -> Iterator[Record]:
    """The first layer, against when its block and the embedding can be there; the first token, two batches later."""
    arrival = sum(done.block_bytes[:2]) / done.rate
    first = middle(runs, lambda run: told(run.first_layer) - run.decided)
    latest = arrival + SLACK_SECONDS
    yield measured(BENCH, "first layer run", first, "s", arrival, at_most=latest / arrival)
    token = middle(runs, lambda run: told(run.first_shared) - run.decided)
    batches = 2 * done.layer * done.model_layers
    yield measured(BENCH, "first token it took part in", token, "s", latest + batches, at_most=1.0)


def ttfts(runs: Runs) -> Iterator[Record]:
    """Records of ZigZag's mean TTFT against the other modes', which have no bars of their own."""
    means = {mode: middle(each, lambda run: run.mean_ttft) for mode, each in runs.items()}
    for mode, other in means.items():
        if mode != "zigzag":
            most = TTFT.get(mode)
            yield measured(BENCH, f"mean TTFT, zigzag / {mode}", means["zigzag"], "s", other, at_most=most)


def streams(runs: Runs) -> Iterator[Record]:
    off = runs["off"]
    for mode, each in runs.items():
        ttft, gap = middle(each, lambda run: run.mean_ttft), middle(each, lambda run: run.mean_gap) * 1e3
        tokens = len(each[0].records[0].token_ids)
        case = f"{tokens} output tokens, {mode}"
        yield measured(BENCH, f"{case}: mean TTFT", ttft, "s", middle(off, lambda run: run.mean_ttft))
        yield measured(BENCH, f"{case}: mean TBT", gap, "ms", middle(off, lambda run: run.mean_gap) * 1e3)


def curve(factor: float, runs: Runs) -> Iterator[Record]:
    off = middle(runs["off"], lambda run: run.mean_ttft)
    for mode, each in runs.items():
        ttft = middle(each, lambda run: run.mean_ttft)
        yield measured(BENCH, f"a block takes {factor:g} layers, {mode}: mean TTFT", ttft, "s", off)


def middle(runs: Sequence[LiveRun], figure: Callable[[LiveRun], float]) -> float:
    return median(map(figure, runs))


def told(at: float | None) -> float:
    if at is None:
        raise BenchFailed("the new instance ran no layer before it had all parameters; run it again on an idle machine")
    return at


def load_seconds(done: LiveMeasurements) -> float:
    return sum(done.block_bytes) / done.rate


def in_requests(run: LiveRun, layers: float) -> float:
    """Layers of rows as layers of requests, which are all alike."""
    return layers / run.records[0].prompt_tokens


def window(run: LiveRun) -> tuple[float, float]:
    """The second half of the load, as long as there is something to do for both."""
    last = max((one.end for one in run.executions if one.live), default=run.whole)
    return run.decided + run.load_seconds / 2, min(run.whole, run.ended, last)


def second_half(run: LiveRun) -> float:
    start, end = window(run)
    return in_requests(run, run.layers_in(start, end)) / (end - start)


def whole_second_half(run: LiveRun) -> float:
    """Until the new instance is whole, also where it, or both, had nothing to do any more."""
    start, end = run.decided + run.load_seconds / 2, run.whole
    return in_requests(run, run.layers_in(start, end)) / (end - start)


def executed(run: LiveRun) -> float:
    """Layers a second while it loads, as long as there is anything to do."""
    end = min(run.whole, run.ended)
    return in_requests(run, run.layers_in(run.decided, end)) / (end - run.decided)


def predicted(done: LiveMeasurements, run: LiveRun) -> float:
    """The same as the policy has it, from how long an undisturbed layer takes and when the blocks were there."""
    rehearsal = rehearsed(done, run)
    end = min(run.load_seconds, max(rehearsal.ends.values()))
    return layers_between(rehearsal, done.layer, 0.0, end) / end


def second_half_as_predicted(done: LiveMeasurements, run: LiveRun) -> float:
    start, end = (at - run.decided for at in window(run))
    return layers_between(rehearsed(done, run), done.layer, start, end) / (end - start)


def rehearsed(done: LiveMeasurements, run: LiveRun) -> Simulation:
    """Seconds count from the decision. The head, which is loaded last, takes next to no time."""
    ready = [at - run.decided for at in accumulate(run.ready[: done.model_layers + 1], max)][1:]
    tasks = [LiveTask(f"{record.index:04}", record.due - run.decided, done.layer) for record in run.records]
    return simulate(tasks, ready)


def layers_between(rehearsal: Simulation, layer: float, start: float, end: float) -> float:
    spans = ((max(one.start, start), min(one.end, end)) for one in rehearsal.spans)
    return sum(stop - begin for begin, stop in spans if stop > begin) / layer
