"""What leaves a process by OTLP: spans, and OpenTelemetry's metrics, where the environment names a collector.

What happened is noted as it happens, in a `TimedSpan`, which is written when it is over. A caller is named by its W3C
traceparent, a text: it travels in messages, and is kept where nothing else of OpenTelemetry is known.

The SDK sends on threads of its own, from queues that are bounded, so that a collector that is slow or dead delays
nobody. It is imported only where it is used: it takes a fifth of a second.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import Meter
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider


Attribute = str | bool | int | float | list[str]


@dataclass(frozen=True)
class Moment:
    """Something that happened within a span, `at` so many seconds since the epoch."""

    name: str
    at: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedSpan:
    """A span from `start` to `end`, in seconds since the epoch. `error` says in a word why it failed.

    `links` are traceparents of spans of other traces. Attributes that are None are left out.
    """

    name: str
    start: float
    end: float
    attributes: Mapping[str, Attribute | None] = field(default_factory=dict)
    moments: tuple[Moment, ...] = ()
    links: tuple[str, ...] = ()
    children: "tuple[TimedSpan, ...]" = ()
    error: str | None = None


def request_attributes(request_id: str, model: str) -> dict[str, Attribute | None]:
    """The attributes by which the spans of a request are found, in whichever process they were made."""
    return {"livescale.request.id": request_id, "gen_ai.request.model": model}


def scale_traceparent(scale_id: str) -> str:
    """The traceparent of a scale's span. It is made of the scale's id, so that every process knows it, and a planner
    that takes over goes on with it."""
    digest = hashlib.blake2b(scale_id.encode(), digest_size=24).hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-01"


ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
NAME = "livescale"

_propagator = TraceContextTextMapPropagator()


def traceparent(span: trace.Span) -> str | None:
    """The W3C header that makes others' spans children of this one; None where nothing is traced."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent")


def parent(traceparent: str | None, tracestate: str | None = None) -> Context | None:
    """The context in which a child of the caller's span starts; None where nothing is traced."""
    if traceparent is None:
        return None
    return _propagator.extract({"traceparent": traceparent, **({"tracestate": tracestate} if tracestate else {})})


def span_context(traceparent: str) -> SpanContext:
    """The ids that a traceparent names; those of no span where it is malformed."""
    return trace.get_current_span(parent(traceparent)).get_span_context()


class ChosenIds:
    """An id generator of the SDK's: ids are random, but for a root span whose ids are chosen by a traceparent."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        self._random = RandomIdGenerator()
        self._chosen: SpanContext | None = None

    @contextmanager
    def choose(self, traceparent: str | None) -> Iterator[None]:
        """Give the span that starts inside the block these ids; random ones where `traceparent` is None."""
        self._chosen = None if traceparent is None else span_context(traceparent)
        try:
            yield
        finally:
            self._chosen = None

    def generate_trace_id(self) -> int:
        return self._random.generate_trace_id() if self._chosen is None else self._chosen.trace_id

    def generate_span_id(self) -> int:
        return self._random.generate_span_id() if self._chosen is None else self._chosen.span_id

    def is_trace_id_random(self) -> bool:
        return True  # a digest's bits are as good


@dataclass(frozen=True)
class SpanWriter:
    """Makes spans of what is over. The sampler decides which are sent, by default as the parent's was decided."""

    tracer: Tracer
    ids: ChosenIds

    def write(self, parent_of: str | None, spans: Iterable[TimedSpan]) -> None:
        """Send these spans as children of the span that the traceparent names; where it names none nothing is sent."""
        context = parent(parent_of)
        if context is None or not trace.get_current_span(context).get_span_context().is_valid:
            return
        for span in spans:
            self._write(context, span)

    def open_root(self, span: TimedSpan, own: str) -> trace.Span:
        """Start the root span of a trace of its own, with the ids that the traceparent `own` names."""
        with self.ids.choose(own):
            return self._start(Context(), span)

    def close(self, opened: trace.Span, span: TimedSpan) -> None:
        """Give a span that was opened its attributes, moments, children and end."""
        if not opened.is_recording():
            return
        opened.set_attributes(_known(span))
        for moment in span.moments:
            opened.add_event(moment.name, dict(moment.attributes), nanoseconds(moment.at))
        context = trace.set_span_in_context(opened)
        for child in span.children:
            self._write(context, child)
        if span.error is not None:
            opened.set_attribute("error.type", span.error)
            opened.set_status(Status(StatusCode.ERROR))
        opened.end(nanoseconds(max(span.start, span.end)))

    def _write(self, context: Context, span: TimedSpan) -> None:
        self.close(self._start(context, span), span)

    def _start(self, context: Context, span: TimedSpan) -> trace.Span:
        links = [Link(span_context(link)) for link in span.links]
        return self.tracer.start_span(span.name, context, links=links, start_time=nanoseconds(span.start))


def _known(span: TimedSpan) -> dict[str, str | bool | int | float | list[str]]:
    return {name: value for name, value in span.attributes.items() if value is not None}


def nanoseconds(seconds: float) -> int:
    """Seconds since the epoch as OpenTelemetry wants them."""
    return round(seconds * 1e9)


class Exporter(Protocol):
    """What ends an exporter's attempts to reach its collector."""

    def shutdown(self) -> None: ...


class Otlp:
    """The ways out of one process. `spans` and `meter` are None where the environment names no collector for them."""

    def __init__(self, service: str, id: str, processor: "SpanProcessor | None" = None) -> None:
        """`processor` takes the spans in the place of the one that the environment asks for."""
        self._id = f"{NAME}-{service}", id
        self._tracers: TracerProvider | None = None
        self._meters: MeterProvider | None = None
        self._exporters: list[Exporter] = []
        self.spans: SpanWriter | None = None
        if processor is not None or is_wanted("TRACES"):
            self.spans = self._open_spans(processor)

    @property
    def tracer(self) -> Tracer:
        """Where spans are started; those of a tracer that does nothing where nothing is traced."""
        return trace.NoOpTracer() if self.spans is None else self.spans.tracer

    def open_meter(self) -> Meter | None:
        """The meter of this process, or None where no metrics are to be sent. The first call opens it."""
        if self._meters is None and is_wanted("METRICS"):
            self._meters = self._open_meters()
        return None if self._meters is None else self._meters.get_meter(NAME)

    def close(self) -> None:
        """Send what is left. It blocks until the collector has answered, or `give_up` was called by another thread."""
        if self._tracers is not None:
            self._tracers.shutdown()
        if self._meters is not None:
            self._meters.shutdown()

    def give_up(self) -> None:
        """Have `close` end: exporters would otherwise try again and again."""
        for exporter in self._exporters:
            exporter.shutdown()

    @property
    def is_open(self) -> bool:
        """Whether anything may be left to be sent."""
        return self._tracers is not None or self._meters is not None

    def _open_spans(self, processor: "SpanProcessor | None") -> SpanWriter:
        from opentelemetry.sdk.trace import TracerProvider

        ids = ChosenIds()
        # Its own exit hook would wait for a dead collector; `Telemetry.shutdown` has a limit.
        self._tracers = TracerProvider(resource=self._resource(), shutdown_on_exit=False, id_generator=ids)  # type: ignore[arg-type]
        self._tracers.add_span_processor(processor or self._open_processor())
        return SpanWriter(self._tracers.get_tracer(NAME), ids)

    def _open_processor(self) -> "SpanProcessor":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = OTLPSpanExporter()
        self._exporters.append(exporter)
        return BatchSpanProcessor(exporter)

    def _open_meters(self) -> "MeterProvider":
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        exporter = OTLPMetricExporter()
        self._exporters.append(exporter)
        return MeterProvider([PeriodicExportingMetricReader(exporter)], self._resource(), shutdown_on_exit=False)

    def _resource(self) -> "Resource":
        from opentelemetry.sdk.resources import Resource

        service, id = self._id
        return Resource.create({"service.name": service, "service.instance.id": id})


def is_wanted(signal: str) -> bool:
    """Whether the environment names a collector for this signal, TRACES or METRICS, and does not turn it off."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if os.environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() == "none":
        return False
    return bool(os.environ.get(ENDPOINT) or os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"))
