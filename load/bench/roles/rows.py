"""What `livescale bench roles` asks for, the same in every run, and the records that its runs become. Pure."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Literal

from livescale.load.bench.live.steps import Execution
from livescale.load.bench.record import Record, measured
from livescale.load.bench.samples import BenchFailed
from livescale.load.records import Ask, RequestRecord
from livescale.load.stats import percentile
from livescale.services.worker.disaggregation.pieces import layer_pieces

CONTEXT = 1_024
PROMPT = 384
OUTPUT = 128  # of a mixed load: the gap before the second token is less than one in a hundred
MOST_LOAD = 0.5  # of the prompts that one instance computes, of a mixed load
GAPS = 2_000  # of a run, at least
LONE, BACK_TO_BACK = 8, 12  # requests
# So long that the link is idle for longer than LATE_SECONDS between two layers of it: a message that comes sooner is
# taken for one that should have followed at once, and leaves early.
LONE_PROMPT = 896
LONE_ROWS, ROWS = 1_024, 512  # of a step, at most: prompts that are alone are computed in one
# Short requests while roles change: how many, how long, and how far apart. Together they are no load to speak of: where
# anything waits at an instance, it takes no reservation. They outlast two of a worker's reports.
FLOW, FLOW_PROMPT, FLOW_SECONDS = 75, 4, 0.02
FLOW_BEFORE = 10  # of these are sent before the order


@dataclass(frozen=True)
class RolesLoads:
    """The requests of every part. Those of a part are never asked for at the same time as those of another.

    `lone`: one at a time. `unsent`: prompts whose KV stays where it is, as they have one token of output. `sent`: the
    same prompts with a second token. `mixed`: prompts come while others decode, at times that are still to be set.
    `flow`: short requests at a steady pace.
    """

    lone: Sequence[Ask]
    unsent: Sequence[Ask]
    sent: Sequence[Ask]
    mixed: Sequence[Ask]
    flow: Sequence[Ask]

    def __iter__(self) -> Iterator[Ask]:
        yield from (*self.lone, *self.unsent, *self.sent, *self.mixed, *self.flow)


def roles_loads() -> RolesLoads:
    """Greedy requests. Those of `unsent` and `sent` have the same prompts."""
    mixed = -(-GAPS // (OUTPUT - 1))
    return RolesLoads(
        lone=[_ask(index, LONE_PROMPT, 2) for index in range(LONE)],
        unsent=[_ask(100 + index, PROMPT, 1) for index in range(BACK_TO_BACK)],
        sent=[_ask(200 + index, PROMPT, 2, prompt_of=100 + index) for index in range(BACK_TO_BACK)],
        mixed=[_ask(300 + index, PROMPT, OUTPUT) for index in range(mixed)],
        flow=[_ask(400 + index, FLOW_PROMPT, 2, at=index * FLOW_SECONDS) for index in range(FLOW)],
    )


def _ask(index: int, prompt_tokens: int, max_tokens: int, at: float = 0.0, prompt_of: int | None = None) -> Ask:
    chance = random.Random(index if prompt_of is None else prompt_of)
    return Ask(index, at, chance.choices(range(1_000), k=prompt_tokens), max_tokens)


def mixed_load(asks: Sequence[Ask], rate: float) -> list[Ask]:
    """Poisson arrivals, the same at every call but for their pace: so many prompts that one instance would be busy with
    `MOST_LOAD` of its time, where it computes `rate` rows of prompts a second."""
    chance, at, due = random.Random(0), 0.0, list[Ask]()
    for ask in asks:
        due.append(Ask(ask.index, at, ask.prompt, ask.max_tokens))
        at += chance.expovariate(MOST_LOAD * rate / len(ask.prompt))
    return due


BENCH = "roles"
LAST_PIECES, SLACK_SECONDS = 1.5, 0.003  # what may be exposed: so many last pieces, and so much beside them
OF_BY_REQUEST = 0.25
RATE = 0.97  # at least
TBT, TTFT = 0.65, 1.1  # at most, of two that are colocated
SWITCH_MS = 50.0

Placing = Literal["apart", "colocated", "switched"]
Transfer = tuple[str, int]  # the worker that prefills, and its ticket


@dataclass(frozen=True)
class KvSizes:
    """The KV of one request of a model: so many layers of so many bytes a position."""

    layers: int
    layer_bytes: int

    def whole(self, positions: int) -> int:
        return self.layers * self.layer_bytes * positions

    def last_piece(self, positions: int) -> int:
        """Bytes of the last piece that leaves in a step which computes so many positions."""
        each = self.layer_bytes * positions
        return each * len(layer_pieces(self.layers, each)[-1])


@dataclass(frozen=True)
class MixedRun:
    """A load of prompts beside decodes. `middle`: when roles changed, or would have, in seconds since the epoch.
    `steps`: seconds of each step of the instance that decodes at first. Meanwhile so many requests were `given` by the
    worker that had prefilled them to another, and so many bytes of parameters `moved`."""

    placing: Placing
    middle: float
    records: Sequence[RequestRecord]
    steps: Sequence[float]
    given: float
    moved: float

    @property
    def gaps(self) -> list[float]:
        """The gaps between two tokens of all streams, those before the second token included."""
        return [gap for record in self.records for gap in record.gaps]

    @property
    def tbt_p99(self) -> float:
        return _percentile(self.gaps, 99)

    @property
    def ttft_p50(self) -> float:
        return _percentile([record.ttft for record in self.records if record.ttft is not None], 50)

    @property
    def longest_pause(self) -> float:
        """The longest gap of any stream from the middle on, until the last of the streams that ran then has ended.

        A gap counts if it ends after the middle.
        """
        ends = [one.token_at[-1] for one in self.records if one.token_at[0] <= self.middle < one.token_at[-1]]
        if not ends:
            raise BenchFailed("no stream was under way when roles changed; run it again on an idle machine")
        gaps = (pair for record in self.records for pair in pairwise(record.token_at))
        return max(after - before for before, after in gaps if after > self.middle and before < max(ends))

    @property
    def decode_step(self) -> float:
        return median(self.steps)


@dataclass
class RolesMeasurements:
    """Everything that was measured. Times are in seconds.

    `prefill`: of the only step of a request. `exposed`: after the first token of requests by layer, `by_request` of
    those by request, both over links of `rate` bytes a second; their last step had so many `last_rows`. `sending` and
    `unsent`: rows of prompts a second while KV leaves, and while none does. `switches`: from an order until the first
    reservation.
    """

    kv: KvSizes
    prefill: float = 0.0
    rate: float = 0.0
    last_rows: int = 0
    exposed: list[float] = field(default_factory=list)
    by_request: list[float] = field(default_factory=list)
    sending: list[float] = field(default_factory=list)
    unsent: list[float] = field(default_factory=list)
    mixed: list[MixedRun] = field(default_factory=list)
    switches: list[float] = field(default_factory=list)

    def placed(self, placing: Placing) -> list[MixedRun]:
        """The mixed runs whose requests were placed this way, in the order in which they were made."""
        return [run for run in self.mixed if run.placing == placing]


def exposed_rows(done: RolesMeasurements) -> Iterator[Record]:
    """What clients notice of the KV's way, where the whole of it takes half of the prefill."""
    yield measured(BENCH, "prefill of one prompt", done.prefill * 1e3, "ms")
    piece = done.kv.last_piece(done.last_rows) / done.rate
    yield measured(BENCH, "last piece on the link", piece * 1e3, "ms", done.prefill * 1e3)
    exposed, by_request = median(done.exposed) * 1e3, median(done.by_request) * 1e3
    most = (LAST_PIECES * piece + SLACK_SECONDS) * 1e3
    yield measured(BENCH, "KV exposed, to its limit", exposed, "ms", most, at_most=1.0)
    yield measured(BENCH, "KV exposed, by layer / by request", exposed, "ms", by_request, at_most=OF_BY_REQUEST)


def sending_rows(done: RolesMeasurements) -> Iterator[Record]:
    """How much prefill suffers from the KV that it sends."""
    sending, unsent = median(done.sending), median(done.unsent)
    yield measured(BENCH, "prefill while KV leaves", sending, "tokens/s", unsent, at_least=RATE)


def mixed_rows(done: RolesMeasurements) -> Iterator[Record]:
    """One that prefills and one that decodes, against two that do both."""
    apart, colocated = done.placed("apart"), done.placed("colocated")
    yield measured(BENCH, "gaps of a run", min(len(run.gaps) for run in (*apart, *colocated)), "gaps")
    given = min(run.given for run in apart)
    yield measured(BENCH, "requests handed over, apart", given, "requests", len(apart[0].records))
    tbt, other = (middle(runs, lambda run: run.tbt_p99) * 1e3 for runs in (apart, colocated))
    yield measured(BENCH, "TBT p99, apart / colocated", tbt, "ms", other, at_most=TBT)
    ttft, other = (middle(runs, lambda run: run.ttft_p50) * 1e3 for runs in (apart, colocated))
    yield measured(BENCH, "TTFT p50, apart / colocated", ttft, "ms", other, at_most=TTFT)


def switch_rows(done: RolesMeasurements) -> Iterator[Record]:
    """What a change of both roles costs streams under way, and how soon it counts."""
    apart = done.placed("apart")
    step, calm = (
        middle(apart, figure) * 1e3 for figure in (lambda run: run.decode_step, lambda run: run.longest_pause)
    )
    pause = middle(done.placed("switched"), lambda run: run.longest_pause) * 1e3
    yield measured(BENCH, "a step of decodes", step, "ms")
    yield measured(BENCH, "longest pause, undisturbed", calm, "ms", step)
    yield measured(BENCH, "longest pause as roles change", pause, "ms", calm + step, at_most=1.0)
    moved = sum(run.moved for run in done.placed("switched"))
    case = "parameters moved as roles change"
    yield Record(bench=BENCH, case=case, value=moved, unit="bytes", bar=0.0, ok=moved == 0)
    switches = [seconds * 1e3 for seconds in done.switches]
    yield measured(BENCH, "order to first reservation, p50", _percentile(switches, 50), "ms")
    late = _percentile(switches, 95)
    yield measured(BENCH, "order to first reservation, p95", late, "ms", SWITCH_MS, at_most=1.0)


def middle(runs: Sequence[MixedRun], figure: Callable[[MixedRun], float]) -> float:
    """The median of one `figure` over all of these runs."""
    return median(map(figure, runs))


def prefill_rate(steps: Sequence[Execution]) -> float:
    """Rows a second of these steps of one worker, from the start of the first to the end of the last."""
    return sum(one.rows for one in steps) / (max(one.end for one in steps) - min(one.start for one in steps))


def _percentile(values: Sequence[float], q: float) -> float:
    found = percentile(values, q)
    if found is None:
        raise BenchFailed("nothing was measured")
    return found
