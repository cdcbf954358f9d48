"""Decides whether the router takes a request, by what the workers have room for and how soon. Pure; `now` is seconds
since the epoch."""

from dataclasses import dataclass
from statistics import fmean

from msgspec.structs import replace

from livescale.services.router.forecast import DEFAULT_SLOS, Slos
from livescale.services.router.requests import Queue
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.model_spec import Disaggregation
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.requests import Submit
from livescale.shared.runtime.settings import RoutingName

# A new router has to hear every worker once before it can say that one is missing. It may take this long: a worker may
# stop for nearly a lease, and some of the reports that it then sends are lost.
SETTLE_SECONDS = 5.0
# A worker that died is usually started again; on a busy machine that takes a while.
REPLACEMENT_SECONDS = 120.0
UNKNOWN_BYTES = 2**63  # size of a worker that died before this router heard it: it may have been large enough
# An instance is given at most this many seconds of prompts, and one more request. What would wait longer waits at the
# router, so that an instance that appears meanwhile can take it. Fewer are given where one can appear at once. Where
# none can, so few cost throughput: first tokens of overloaded instances came an eighth later (simulated).
AHEAD_SECONDS, AHEAD_OF_PARKED_SECONDS = 0.5, 0.25
SHORTEST_RETRY_MS, LONGEST_RETRY_MS = 100, 60_000


def most_tokens(request: Submit) -> int:
    """The most tokens that a request may ever have: its prompt, and all that it may generate."""
    return len(request.prompt) + request.max_tokens


def fitted(request: Submit, room: int) -> Submit:
    """Limit an open-ended request, whose client named no number of tokens, to as many as there is room for, and at
    least to one. Other requests are returned as they are."""
    if not request.open_ended or most_tokens(request) <= room:
        return request
    return replace(request, max_tokens=max(1, room - len(request.prompt)))


def never_fits(request: Submit, room: int) -> str:
    """The message for a client whose request is larger than the largest instance."""
    return (
        f"prompt and max_tokens need room for {most_tokens(request)} tokens; the largest instance has {room}: "
        "shorten the prompt or ask for fewer tokens"
    )


class WorkerCapacity:
    """What the last reports of all workers allow. `default_retry_ms` is the answer to refused clients where nothing has
    been measured."""

    def __init__(self, default_retry_ms: int) -> None:
        self._started: float | None = None
        self._default_retry_ms = default_retry_ms
        self._reports: dict[str, WorkerReport] = {}
        self._lost: dict[str, tuple[int, float]] = {}  # by worker that died: its arena's bytes, and when
        self._loading: dict[str, tuple[str | None, float]] = {}  # by worker that loads: the plan, and since when
        self._kv_tokens: dict[str, tuple[str | None, int]] = {}  # by model: version, and the largest KV cache seen
        self._parked: dict[str, str] = {}  # by spare worker that keeps parameters: their version

    def watch(self, now: float) -> None:
        """Begin to count the time for which workers have been listened to; later calls change nothing."""
        self._started = now if self._started is None else self._started

    def listen_again(self, now: float) -> None:
        """Begin to count that time anew, as no worker was listened to for a while."""
        self._started = now

    def heard(self, report: WorkerReport, now: float) -> None:
        """Take over a worker's report, which also says that the worker lives."""
        self._reports[report.id] = report
        self._parked.pop(report.id, None)
        if report.parked is not None:
            self._parked[report.id] = report.parked
        self._lost.pop(report.id, None)
        if report.state not in ("loading", "live"):
            self._loading.pop(report.id, None)
        elif self._loading.get(report.id, (None, now))[0] != report.plan_id:
            self._loading[report.id] = (report.plan_id, now)
        if report.model is not None and report.load is not None:
            known_version, known = self._kv_tokens.get(report.model, (None, 0))
            room = report.load.kv_blocks_total * report.load.kv_block_tokens
            room = max(room, known) if known_version == report.version else room
            self._kv_tokens[report.model] = (report.version, room)

    def lost(self, worker: str, epoch: int, now: float) -> None:
        """Note that a worker died, even if that was before this router took office."""
        report = self._reports.get(worker)
        if report is None:
            self._lost.setdefault(worker, (UNKNOWN_BYTES, now))
        elif report.epoch <= epoch:
            del self._reports[worker]
            self._parked.pop(worker, None)
            self._loading.pop(worker, None)
            self._lost[worker] = (report.arena_bytes, now)

    def ahead_seconds(self, entry: ModelEntry | None) -> float:
        """How many seconds of prompts an instance of this model is given ahead: few while a spare worker keeps the
        parameters, as that one can serve at once and take what waits at the router."""
        at_once = entry is not None and entry.version in self._parked.values()
        return AHEAD_OF_PARKED_SECONDS if at_once else AHEAD_SECONDS

    def kv_tokens(self, model: str) -> int | None:
        """Tokens for which the largest instance of the model seen so far has room; None where none was seen."""
        return self._kv_tokens.get(model, (None, None))[1]

    def why_impossible(self, entry: ModelEntry, now: float) -> str | None:
        """Say why no worker will ever load this model; None where one could, or may yet appear."""
        needed, ranks = entry.rank_bytes, entry.spec.tensor_parallel_size
        fitting = sum(report.arena_bytes >= needed for report in self._reports.values())
        if fitting >= ranks:
            return None
        self._lost = {id: (arena, at) for id, (arena, at) in self._lost.items() if now - at < REPLACEMENT_SECONDS}
        settled = self._started is not None and now - self._started >= SETTLE_SECONDS
        if not settled or fitting + sum(arena >= needed for arena, _ in self._lost.values()) >= ranks:
            return None
        if not self._reports:
            return "no worker is alive; start one"
        largest = max(report.arena_bytes for report in self._reports.values())
        if largest < needed:
            return f"it needs {needed} bytes, and the largest worker has {largest}"
        return f"an instance is {ranks} workers (tensor_parallel_size), and {fitting} can have one"

    def retry_after_ms(self, model: str, waiting_tokens: int, now: float) -> int:
        """Milliseconds until there is room: once what waits has been prefilled, or once an instance has been loaded."""
        rates = self._prefill_rates(model)
        known = [rate for rate in rates if rate]
        if known:
            seconds: float | None = waiting_tokens / (len(rates) * fmean(known))
        else:
            seconds = self._remaining_load_seconds(model, now)
        if seconds is None:
            return self._default_retry_ms
        return round(min(max(seconds * 1000, SHORTEST_RETRY_MS), LONGEST_RETRY_MS))

    def _prefill_rates(self, model: str) -> list[float | None]:
        """Tokens a second of each instance that serves; None for those that have not measured it yet."""
        serving = [r for r in self._reports.values() if r.model == model and r.rank == 0 and r.state == "serving"]
        return [None if r.load is None else r.load.prefill_tokens_per_second for r in serving]

    def _remaining_load_seconds(self, model: str, now: float) -> float | None:
        """Seconds until the instance that is nearest to being whole is loaded, at the pace that it has had so far."""
        remaining = []
        for worker, (_, since) in self._loading.items():
            report = self._reports[worker]
            if report.model == model and report.holding is not None and report.holding.ready:
                ready = len(report.holding.ready)
                remaining.append((now - since) * (report.holding.total - ready) / ready)
        return min(remaining, default=None)


@dataclass(frozen=True)
class RouterLimits:
    """The limits that a router keeps. At most `max_waiting` requests with `max_waiting_tokens` tokens of one model may
    wait; a single request always may.

    `look_ahead` is the number of requests that an instance may have beyond its slots, so that a slot never waits for
    the router. `silent_seconds`: an instance that reports no request at all for this long has none, whatever was
    admitted to it. `disaggregation`: of models that do not say whether they have it; `slos`: when they are in time.
    `routing`: the rule by which instances are chosen.
    """

    max_waiting: int = 4096
    max_waiting_tokens: int = 1 << 22
    look_ahead: int = 1
    silent_seconds: float = 2.0
    disaggregation: Disaggregation = "off"
    slos: Slos = DEFAULT_SLOS
    routing: RoutingName = "least-loaded"


def check_request(
    request: Submit, entry: ModelEntry | None, queue: Queue, capacity: WorkerCapacity, limits: RouterLimits, now: float
) -> None:
    """Raise Refusal where the request cannot be queued.

    Its code is 400 (it never fits), 404 (unknown model), 429 (full queue), 503 (no worker can serve it) or 504 (its
    deadline has passed). A request that resumes was accepted before. It does not count against the queue's limit, and
    it is not given up because its worker was the only one.
    """
    if entry is None:
        raise Refusal(404, f"model {request.model!r} is not registered")
    refusal = out_of_service(entry)
    if refusal is not None:
        raise refusal
    if request.deadline <= now:
        raise Refusal(504, f"request {request.request_id} is past its deadline")
    _check_size(request, capacity.kv_tokens(request.model))
    if request.generated:
        return
    impossible = cannot_be_loaded(entry, capacity, now)
    if impossible is not None:
        raise Refusal(503, impossible)
    tokens = queue.tokens + len(request.prompt)
    if len(queue) >= limits.max_waiting or (queue and tokens > limits.max_waiting_tokens):
        message = f"{len(queue)} requests with {queue.tokens} tokens for {request.model!r} are waiting already"
        raise Refusal(429, message, capacity.retry_after_ms(request.model, queue.tokens, now))


def _check_size(request: Submit, room: int | None) -> None:
    """Raise Refusal 400 where the request needs more than `room` tokens. None is an unknown room, which refuses
    nothing."""
    if room is None:
        return
    request = fitted(request, room)
    if most_tokens(request) > room:
        raise Refusal(400, never_fits(request, room))


def cannot_be_loaded(entry: ModelEntry, capacity: WorkerCapacity, now: float) -> str | None:
    """Say why no worker can load the model; None where one can, or may yet appear."""
    why = capacity.why_impossible(entry, now)
    return None if why is None else f"model {entry.spec.name!r} cannot be loaded: {why}"


def out_of_service(entry: ModelEntry) -> Refusal | None:
    """Return the refusal of a model that is registered but takes no requests; None where it takes them."""
    if entry.state == "failed":
        return Refusal(503, f"model {entry.spec.name!r} could not be read: {entry.error}")
    if entry.state == "removing":
        return Refusal(404, f"model {entry.spec.name!r} was removed")
    return None
