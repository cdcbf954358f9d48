"""A worker's Prometheus metrics: vLLM's families, so that dashboards and autoscalers made for vLLM work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prometheus_client import Counter, Gauge, Histogram

from livescale.services.worker.instance.spans import RequestTimes, WorkerSpans
from livescale.services.worker.scheduling.batch import Batch
from livescale.shared.links.meter import PathBytes
from livescale.shared.messages.membership import EngineLoad
from livescale.shared.messages.requests import Submit, Tokens
from livescale.shared.process.telemetry import Telemetry

LABELS = ("model_name", "engine")
CACHE_LABELS = (*LABELS, "block_size", "num_gpu_blocks")  # vLLM's names: blocks lie wherever the engine runs
FINISH_REASONS = ("stop", "length", "cancelled", "deadline", "error")
TOKEN_BUCKETS = tuple(float(1 << power) for power in range(16))
GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.5, 1.0, 2.5, 5.0)


@dataclass
class WorkerMetrics:
    """One worker's metric families. Call `serve` when it begins to serve a model, the other methods as things
    happen. `spans` are told of requests that are over."""

    telemetry: Telemetry
    worker: str
    spans: WorkerSpans | None = None
    _model: str = ""
    _times: dict[str, RequestTimes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counter, gauge = self.telemetry.counter, self.telemetry.gauge
        self._waiting = gauge(
            "vllm:num_requests_waiting", "Requests that wait for their first step, or were preempted", LABELS
        )
        self._running = gauge("vllm:num_requests_running", "Requests in the batch", LABELS)
        self._kv = gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1", LABELS)
        self._prompt = counter("vllm:prompt_tokens", "Prompt tokens prefilled", LABELS)
        self._generated = counter("vllm:generation_tokens", "Tokens generated", LABELS)
        self._preempted = counter(
            "vllm:num_preemptions", "Requests that lost their KV blocks to others, to be computed again", LABELS
        )
        self._queries = counter("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache", LABELS)
        self._hits = counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache", LABELS)
        self._fetched = counter(
            "livescale_worker_prefix_fetched_tokens",
            "Tokens found in the prefix cache whose KV came from host memory",
            LABELS,
        )
        self._success = counter("vllm:request_success", "Requests that ended", (*LABELS, "finished_reason"))
        self._ttft = self._seconds("time_to_first_token", "From admission to the first token")
        self._gap = self.telemetry.histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of a request", LABELS, buckets=GAP_BUCKETS
        )
        self._e2e = self._seconds("e2e_request_latency", "From admission to the last token")
        self._queue = self._seconds("request_queue_time", "From admission to the first step")
        self._prefill = self._seconds("request_prefill_time", "From the first step to the first token")
        self._decode = self._seconds("request_decode_time", "From the first token to the last")
        self._inference = self._seconds("request_inference_time", "From the first step to the last token")
        self._prompt_size = self._tokens("request_prompt_tokens", "Tokens of a prompt")
        self._output_size = self._tokens("request_generation_tokens", "Tokens generated for a request")
        self._longest = self._tokens(
            "request_max_num_generation_tokens",
            "Tokens of the longest answer to a request; here each request has one answer",
        )
        self._per_token = self.telemetry.histogram(
            "vllm:request_time_per_output_token_seconds",
            "From a request's first token to its last, divided by the tokens after the first",
            LABELS,
            buckets=GAP_BUCKETS,
        )
        self._cache = gauge("vllm:cache_config_info", "1 for the KV cache of this engine", CACHE_LABELS)
        phases = (self._ttft, self._gap, self._e2e, self._queue, self._prefill, self._decode, self._inference)
        self._histograms = (*phases, self._prompt_size, self._output_size, self._longest, self._per_token)

    def serve(self, model: str, load: Callable[[], EngineLoad | None]) -> None:
        """Begin to serve a model: its metric families exist from now on, at zero. `load` is called at every scrape, and
        not after every step. It returns None when nothing is served."""
        self._model = model
        self._times.clear()
        # Looked up by their labels once, and not for every token.
        counters = (self._prompt, self._generated, self._preempted, self._queries, self._hits, self._fetched)
        self._counter_of = {family: family.labels(model, self.worker) for family in counters}
        self._histogram_of = {family: family.labels(model, self.worker) for family in self._histograms}
        self._show(self._waiting, load, lambda load: load.waiting_requests)
        self._show(self._running, load, lambda load: load.running_requests)
        self._show(self._kv, load, lambda load: load.kv_blocks_used / load.kv_blocks_total)
        for reason in FINISH_REASONS:
            self._success.labels(model, self.worker, reason)
        self._cache.clear()
        if (now := load()) is not None:
            self._cache.labels(model, self.worker, now.kv_block_tokens, now.kv_blocks_total).set(1)

    def admitted(self, request: Submit, now: float, waited: float = 0.0) -> None:
        """Count a request that came at the time `now`, after `waited` seconds at another worker."""
        self._times[request.request_id] = RequestTimes(request, now - waited, now)
        self._observe(self._prompt_size, len(request.prompt))

    def taken_over(self, request: Submit, now: float, waited: float, silent: float) -> None:
        """Take a request that another worker prefilled: its last token came `silent` seconds ago, and the gap to the
        next one counts here."""
        self.admitted(request, now, waited)
        times = self._times[request.request_id]
        times.first = times.last = now - silent

    def waited(self, request_id: str, now: float) -> float:
        """Seconds since the request was admitted; 0 for one that is not known."""
        return now - self._times[request_id].admitted if request_id in self._times else 0.0

    def moved(self, request_id: str, now: float, taker: str, layers: int) -> None:
        """Forget a request that another worker goes on with, and counts. So many `layers` of it were run here."""
        times = self._times.pop(request_id, None)
        if times is not None and self.spans is not None:
            self.spans.moved(times, now, taker, layers)

    def lost(self, request_id: str, now: float, reason: str) -> None:
        """Forget a request that does not go on here."""
        times = self._times.pop(request_id, None)
        if times is not None and self.spans is not None:
            self.spans.lost(times, now, reason)

    def went_live(self, request_id: str, now: float) -> None:
        """Note that the first layer of a request begins, although other layers are missing."""
        times = self._times.get(request_id)
        if times is not None and times.live is None:
            times.live = now

    def stepped(self, batch: Batch, begun: float) -> None:
        """Count a step that began at the time `begun` and is over."""
        for chunk in batch.chunks:
            times = self._times.get(chunk.request_id)
            if times is not None and times.started is None and times.first is None:
                times.started = begun
                self._observe(self._queue, begun - times.admitted)
        self._add(self._prompt, batch.prefill_rows)
        self._add(self._preempted, len(batch.preempted))
        self._add(self._queries, batch.prefixes.queries)
        self._add(self._hits, batch.prefixes.hits)
        self._add(self._fetched, batch.prefixes.fetched)

    def emitted(self, rows: Sequence[Tokens], now: float) -> None:
        """Count rows of tokens that are sent to gateways at the time `now`."""
        known = [(row, self._times[row.request_id]) for row in rows if row.request_id in self._times]
        self._add(self._generated, sum(len(row.token_ids) for row, _ in known))
        for row, times in known:
            self._emitted(row, times, now)

    def _emitted(self, row: Tokens, times: RequestTimes, now: float) -> None:
        if row.token_ids:
            times.tokens += len(row.token_ids)
            self._token(times, now)
        if row.finish_reason is not None:
            del self._times[row.request_id]
            self._success.labels(self._model, self.worker, row.finish_reason).inc()
            self._ended(times, now)
            if self.spans is not None:
                times.cached_tokens = row.cached_tokens
                self.spans.ended(times, now, row.finish_reason)

    def _token(self, times: RequestTimes, now: float) -> None:
        if times.last is not None:
            self._observe(self._gap, now - times.last)
        if times.first is None:
            times.first = now
            self._observe(self._ttft, now - times.admitted)
            if times.started is not None:
                self._observe(self._prefill, now - times.started)
        times.last = now

    def _ended(self, times: RequestTimes, now: float) -> None:
        self._observe(self._e2e, now - times.admitted)
        self._observe(self._output_size, times.tokens)
        self._observe(self._longest, times.tokens)
        if times.started is not None:
            self._observe(self._inference, now - times.started)
        if times.first is not None:
            self._observe(self._decode, now - times.first)
            if times.tokens > 1 and times.last is not None:
                self._observe(self._per_token, (times.last - times.first) / (times.tokens - 1))

    def _seconds(self, name: str, doc: str) -> Histogram:
        return self.telemetry.histogram(f"vllm:{name}_seconds", doc, LABELS)

    def _tokens(self, name: str, doc: str) -> Histogram:
        return self.telemetry.histogram(f"vllm:{name}", doc, LABELS, buckets=TOKEN_BUCKETS)

    def _observe(self, histogram: Histogram, value: float) -> None:
        self._histogram_of[histogram].observe(value)

    def _add(self, counter: Counter, amount: int) -> None:
        if amount:
            self._counter_of[counter].inc(amount)

    def _show(self, gauge: Gauge, load: Callable[[], EngineLoad | None], value: Callable[[EngineLoad], float]) -> None:
        """Have `gauge` read its value from `load`, for the model that is served and for no other."""

        def read() -> float:
            now = load()
            return 0.0 if now is None else value(now)

        gauge.clear()
        gauge.labels(self._model, self.worker).set_function(read)


class LoadCounts:
    """What a worker counts of parameters on their way into it, and on."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.moved = PathBytes(telemetry).moved
        self.received = telemetry.counter(
            "livescale_worker_received_bytes_total", "Bytes of parameters that came over the link"
        )
        self.shared = telemetry.counter(
            "livescale_worker_shared_bytes_total", "Bytes of parameters that are mapped from another process's memory"
        )
        self.broken = telemetry.counter(
            "livescale_worker_broken_transfers_total", "Flows of parameters that were lost, and waited for another"
        )
        self.paused = telemetry.counter(
            "livescale_worker_send_pause_seconds_total",
            "Seconds that chunks waited to be sent while steps were computed",
        )
        self.damaged = telemetry.counter(
            "livescale_worker_damaged_blocks_total", "Blocks that came with a wrong checksum and were fetched again"
        )
