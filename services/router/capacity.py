"""What the workers can do for a model: whether it fits anywhere, how long a request may be, how soon there is room.

Pure; `now` is seconds since the epoch. What has not been heard is unknown, and never a reason to refuse.
"""

from statistics import fmean

from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.registry import ModelEntry

# Before a new router has heard everyone, it cannot say that somebody is missing.
SETTLE_SECONDS = 3.0
# A process that died is started again by whoever runs it; on a busy machine that takes its time.
REPLACEMENT_SECONDS = 120.0
UNKNOWN_BYTES = 2**63  # of a worker that this router has never heard: it may have been large enough
SHORTEST_RETRY_MS, LONGEST_RETRY_MS = 100, 60_000


class Capacity:
    """By the last report of every worker. `default_retry_ms` is the answer where nothing has been measured."""

    def __init__(self, default_retry_ms: int) -> None:
        self._started: float | None = None
        self._default_retry_ms = default_retry_ms
        self._reports: dict[str, WorkerReport] = {}
        self._lost: dict[str, tuple[int, float]] = {}  # arena and time of workers that died
        self._loading: dict[str, tuple[str | None, float]] = {}  # plan that a worker loads for, and since when
        self._kv_tokens: dict[str, tuple[str | None, int]] = {}  # by model: version, and the largest KV cache seen

    def watch(self, now: float) -> None:
        """From its first call on, workers are listened to."""
        self._started = now if self._started is None else self._started

    def listen_again(self, now: float) -> None:
        """Nobody was listened to for a while."""
        self._started = now

    def heard(self, report: WorkerReport, now: float) -> None:
        self._reports[report.id] = report
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
        """A worker died, be it before this router took office."""
        report = self._reports.get(worker)
        if report is None:
            self._lost.setdefault(worker, (UNKNOWN_BYTES, now))
        elif report.epoch <= epoch:
            del self._reports[worker]
            self._loading.pop(worker, None)
            self._lost[worker] = (report.arena_bytes, now)

    def kv_tokens(self, model: str) -> int | None:
        """Tokens that the largest instance seen so far has room for."""
        return self._kv_tokens.get(model, (None, None))[1]

    def why_impossible(self, entry: ModelEntry, now: float) -> str | None:
        """Why no worker will ever load this model; None where one could, or may yet appear."""
        needed, ranks = entry.rank_bytes, entry.spec.tensor_parallel_size
        fitting = sum(report.arena_bytes >= needed for report in self._reports.values())
        if fitting >= ranks:
            return None
        self._lost = {id: (arena, at) for id, (arena, at) in self._lost.items() if now - at < REPLACEMENT_SECONDS}
        settled = self._started is not None and now - self._started >= SETTLE_SECONDS
        if not settled or fitting + sum(arena >= needed for arena, _ in self._lost.values()) >= ranks:
            return None
        if not self._reports:
            return "there is no worker"
        largest = max(report.arena_bytes for report in self._reports.values())
        if largest < needed:
            return f"it needs {needed} bytes, and the largest worker has {largest}"
        return f"an instance is {ranks} workers (tensor_parallel_size), and {fitting} can have one"

    def retry_after_ms(self, model: str, waiting_tokens: int, now: float) -> int:
        """When there will be room: once what waits is prefilled, or once an instance is loaded."""
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
        """One of each instance that serves; None where it has not been measured."""
        serving = [r for r in self._reports.values() if r.model == model and r.rank == 0 and r.state == "serving"]
        return [None if r.load is None else r.load.prefill_tokens_per_second for r in serving]

    def _remaining_load_seconds(self, model: str, now: float) -> float | None:
        """Of the instance that is nearest to being whole, at the pace it has had so far."""
        remaining = []
        for worker, (_, since) in self._loading.items():
            report = self._reports[worker]
            if report.model == model and report.holding is not None and report.holding.ready:
                ready = len(report.holding.ready)
                remaining.append((now - since) * (report.holding.total - ready) / ready)
        return min(remaining, default=None)
