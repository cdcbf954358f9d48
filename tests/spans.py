"""Spans of actors under test, kept in memory instead of being sent."""

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from livescale.shared.process.otlp import Otlp
from livescale.shared.process.telemetry import Telemetry

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = CALLER[:-1] + "0"


def traced(telemetry: Telemetry) -> InMemorySpanExporter:
    """Have a process trace, and keep what it would send."""
    kept = InMemorySpanExporter()
    telemetry._otlp = Otlp("test", "test-0", SimpleSpanProcessor(kept))
    return kept


def seconds(span: ReadableSpan) -> tuple[float, float]:
    """When a span began and ended, in seconds since the epoch."""
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time / 1e9, span.end_time / 1e9


def context_of(span: ReadableSpan) -> SpanContext:
    """The ids of a span, which every span that was begun has."""
    context = span.get_span_context()
    assert context is not None
    return context


def trace_id(span: ReadableSpan) -> str:
    """The id of a span's trace, as a traceparent has it."""
    return f"{context_of(span).trace_id:032x}"
