"""What the router tells of its work: metrics, as Prometheus reads them, and spans of each request: how long it waited,
for which scale, and which worker was asked."""

from collections.abc import Iterable

from livescale.services.router.effects import AdmitTo, FinishRequest
from livescale.shared.messages.membership import QueueLoad
from livescale.shared.process.otlp import Attribute, SpanWriter, TimedSpan, request_attributes, scale_traceparent
from livescale.shared.process.telemetry import Telemetry

DECISION_BUCKETS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1)


class RouterMetrics:
    """What a router counts and times, for its system port."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._decision = telemetry.histogram(
            "livescale_router_decision_seconds",
            "Time to queue a request and place what has room",
            buckets=DECISION_BUCKETS,
        )
        self._depth = telemetry.gauge(
            "livescale_router_queue_depth", "Requests that wait at the router", ["model_name"]
        )
        self._in_office = telemetry.gauge(
            "livescale_router_in_office", "1 at the active router, 0 at those that stand by"
        )
        self._admitted = telemetry.counter("livescale_router_admissions_total", "Requests that a worker took")
        self._ways = telemetry.counter(
            "livescale_router_ways_total",
            "Requests given to workers, by way: split where another one is to decode them, local where not",
            ["model_name", "way"],
        )
        self._prefilling = telemetry.gauge(
            "livescale_router_prefilling_instances",
            "Instances that are to prefill for others to decode, where --disaggregation auto chooses",
            ["model_name"],
        )
        self._moves = telemetry.counter(
            "livescale_router_moves_total",
            "Requests that a draining worker, or one that prefills, was to hand over to another, by outcome",
            ["outcome"],
            [("taken",), ("kept",)],
        )
        self._lost = telemetry.counter("livescale_router_lost_total", "Started requests whose worker is gone")
        self._refused = telemetry.counter(
            "livescale_router_refusals_total",
            "Requests refused, by code",
            ["code"],
            [(code,) for code in ("404", "409", "429", "503", "504")],
        )

    def decided(self, seconds: float) -> None:
        self._decision.observe(seconds)

    def queues(self, depths: dict[str, int]) -> None:
        for model, waiting in depths.items():
            self._depth.labels(model).set(waiting)

    def holds_office(self, it_does: bool) -> None:
        self._in_office.set(int(it_does))

    def admitted(self, model: str, split: bool) -> None:
        self._admitted.inc()
        self._ways.labels(model, "split" if split else "local").inc()

    def chosen(self, loads: Iterable[QueueLoad]) -> None:
        """Take over how many instances are to prefill."""
        for load in loads:
            if load.prefilling is not None:
                self._prefilling.labels(load.model).set(load.prefilling)

    def moved(self, *, taken: bool) -> None:
        self._moves.labels("taken" if taken else "kept").inc()

    def lost(self) -> None:
        self._lost.inc()

    def refused(self, code: int) -> None:
        self._refused.labels(str(code)).inc()


class RouterSpans:
    """Tells what the router did, where requests are traced. Times are seconds since the epoch."""

    def __init__(self, writer: SpanWriter | None) -> None:
        self._writer = writer

    def answered(self, effect: AdmitTo, asked: float, now: float, code: int | None = None) -> None:
        """A worker that was `asked` to take a request has done so, or has refused it with a `code`."""
        if self._writer is not None:
            self._writer.write(effect.request.traceparent, admission_spans(effect, asked, now, code))

    def finished(self, effect: FinishRequest, now: float) -> None:
        """Send the span of a request that ended in the queue, before any worker had it."""
        if self._writer is not None and effect.waiting is not None:
            self._writer.write(effect.waiting.request.traceparent, [end_span(effect, effect.waiting.since, now)])


def admission_spans(effect: AdmitTo, asked: float, now: float, code: int | None) -> list[TimedSpan]:
    """The call to the worker, and, once one has taken the request, its time in the queue before."""
    request = request_attributes(effect.request.request_id, effect.request.model)
    route = TimedSpan(
        "route",
        asked,
        now,
        {
            **request,
            "livescale.worker.id": effect.worker,
            "livescale.route.reason": effect.reason,
            "livescale.route.attempt": effect.attempt,
        },
        error=None if code is None else str(code),
    )
    if code is not None:
        return [route]
    links = () if effect.scale is None else (scale_traceparent(effect.scale),)
    return [
        TimedSpan("queue", effect.since, asked, {**request, "livescale.scale.id": effect.scale}, links=links),
        route,
    ]


def end_span(effect: FinishRequest, since: float, now: float) -> TimedSpan:
    """The time in the queue of a request that came to nothing, or to all that it could."""
    attributes: dict[str, Attribute | None] = {"livescale.request.id": effect.request_id}
    failed = effect.finish_reason in ("error", "deadline")
    return TimedSpan("queue", since, now, attributes, error=effect.finish_reason if failed else None)
