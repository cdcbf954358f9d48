"""What the router did for a request, as spans: how long it waited, for which scale, and which worker was asked."""

from livescale.services.router.effects import AdmitTo, FinishRequest
from livescale.shared.process.otlp import SpanWriter
from livescale.shared.process.spans import Attribute, TimedSpan, request_attributes, scale_traceparent


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
