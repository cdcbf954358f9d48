"""What a worker did for a request and for a scale, as spans: built from noted times, when it is over.

A request's time at a worker is cut into `queue`, `prefill` and `decode`. Where it changes hands, the worker that it
leaves tells the first parts and the one that it comes to tells `handoff` and the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from livescale.shared.messages.requests import FinishReason, Submit
from livescale.shared.messages.transfers import Load
from livescale.shared.process.otlp import Attribute, Moment, SpanWriter, TimedSpan, request_attributes
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import Clock

Attributes = Mapping[str, Attribute | None]


@dataclass
class RequestTimes:
    """The moments of one request, in seconds of the worker's clock.

    `admitted` is when the first worker took it, `came` when this one did. `live` is when the first layer of it was run
    before the model was whole. A request that another worker prefilled has a `first` token and was never `started`.
    """

    request: Submit
    admitted: float
    came: float
    live: float | None = None
    started: float | None = None
    first: float | None = None
    last: float | None = None
    tokens: int = 0
    cached_tokens: int = 0


@dataclass
class LoadTimes:
    """The moments of one load, in seconds since the epoch. `traceparent` names the scale's span."""

    began: float
    traceparent: str | None = None
    blocks: list[tuple[int, float]] = field(default_factory=list)


class WorkerSpans:
    """Sends the spans of one worker, where requests and scales are traced."""

    def __init__(self, writer: SpanWriter | None, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock

    @classmethod
    def of(cls, telemetry: Telemetry, clock: Clock) -> "WorkerSpans":
        """Make the spans of a worker from the telemetry and the clock of its process."""
        return cls(telemetry.spans, clock)

    def ended(self, times: RequestTimes, now: float, reason: FinishReason) -> None:
        """A request has ended here at the time `now`."""
        self._write(times, now, reason if reason in ("error", "deadline", "cancelled") else None)

    def lost(self, times: RequestTimes, now: float, reason: str) -> None:
        """A request does not go on here, and its gateway has to submit it again."""
        self._write(times, now, "lost", {"livescale.reason": reason})

    def moved(self, times: RequestTimes, now: float, taker: str, layers: int) -> None:
        """Another worker goes on with a request, of which so many `layers` were run here."""
        self._write(times, now, None, {"livescale.handoff.to": taker, "livescale.handoff.layers": layers})

    def taken(
        self,
        request: Submit,
        giver: str,
        began: float,
        ended: float,
        *,
        layers: int,
        size_bytes: int,
        error: str | None = None,
    ) -> None:
        """A request that another worker gave has come, or did not come whole. `size_bytes` are those that came of its
        activation and KV, of so many `layers`."""
        if self._writer is None or request.traceparent is None:
            return
        attributes = {
            **request_attributes(request.request_id, request.model),
            "livescale.handoff.from": giver,
            "livescale.handoff.layers": layers,
            "livescale.handoff.bytes": size_bytes,
        }
        span = TimedSpan("handoff", began, ended, attributes, error=error)
        self._writer.write(request.traceparent, [moved_by(span, self._epoch)])

    def loaded(self, load: Load, times: LoadTimes, sizes: tuple[int, int], error: str | None) -> None:
        """A load is over. `sizes` are the bytes that were received and those that are shared with another process."""
        if self._writer is not None and times.traceparent is not None:
            self._writer.write(times.traceparent, [transfer_span(load, times, self._clock.wall(), sizes, error)])

    def _write(self, times: RequestTimes, now: float, error: str | None, more: Attributes | None = None) -> None:
        if self._writer is not None and times.request.traceparent is not None:
            epoch = self._epoch
            spans = [moved_by(span, epoch) for span in request_spans(times, now, error, more)]
            self._writer.write(times.request.traceparent, spans)

    @property
    def _epoch(self) -> float:
        """When the clock showed zero, in seconds since the epoch. Time that the process slept counts before that."""
        return self._clock.wall() - self._clock.now()


def request_spans(
    times: RequestTimes, now: float, error: str | None, more: Attributes | None = None
) -> list[TimedSpan]:
    """The parts of a request's time at a worker, which it leaves at the time `now`, by the worker's clock. The last
    part has the error, and `more` attributes."""
    request = times.request
    common = request_attributes(request.request_id, request.model)
    begun = times.started if times.live is None else times.live
    was_prefilled = begun is None and times.first is not None  # by another worker
    parts = [] if was_prefilled else [TimedSpan("queue", times.came, now if begun is None else begun, common)]
    if begun is not None:
        prefill = {
            **common,
            "livescale.prefill.tokens": len(request.prompt) + len(request.generated) - times.cached_tokens,
            "gen_ai.usage.cache_read.input_tokens": times.cached_tokens,
            "livescale.prefill.live": times.live is not None,
        }
        parts.append(TimedSpan("prefill", begun, now if times.first is None else times.first, prefill))
    if times.first is not None:
        decode = {**common, "gen_ai.usage.output_tokens": times.tokens}
        parts.append(TimedSpan("decode", max(times.first, times.came), now, decode))
    last = parts.pop()
    return [*parts, replace(last, attributes={**last.attributes, **(more or {})}, error=error)]


def transfer_span(load: Load, times: LoadTimes, now: float, sizes: tuple[int, int], error: str | None) -> TimedSpan:
    """The parameters' way here for one plan, until the time `now`; each block's readiness is a moment of it."""
    received, shared = sizes
    return TimedSpan(
        "transfer",
        times.began,
        now,
        {
            "livescale.scale.id": load.plan_id,
            "livescale.instance.id": load.instance,
            "livescale.rank": load.rank,
            "gen_ai.request.model": load.model,
            "livescale.transfer.blocks": len(load.manifest.blocks),
            "livescale.transfer.received_bytes": received,
            "livescale.transfer.shared_bytes": shared,
        },
        moments=tuple(Moment("block_ready", at, {"livescale.block": index}) for index, at in times.blocks),
        error=None if error is None else "failed",
    )


def moved_by(span: TimedSpan, seconds: float) -> TimedSpan:
    """A span without moments or children, so many seconds later."""
    return replace(span, start=span.start + seconds, end=span.end + seconds)
