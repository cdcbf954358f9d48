"""A collector of OpenTelemetry inside the test's process: an HTTP server that reads OTLP's protobuf."""

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint

PATIENCE_SECONDS = 60.0
SETTINGS = {
    "OTEL_BSP_SCHEDULE_DELAY": "200",  # milliseconds
    "OTEL_METRIC_EXPORT_INTERVAL": "500",
    "OTEL_EXPORTER_OTLP_TIMEOUT": "5",
}


@dataclass(frozen=True)
class SeenSpan:
    """A span as it came. Times are seconds since the epoch, ids are in hexadecimal."""

    name: str
    trace: str
    id: str
    parent: str
    service: str
    instance: str
    start: float
    end: float
    attributes: dict[str, Any]
    events: tuple[str, ...]
    links: tuple[tuple[str, str], ...]  # traces and spans
    failed: bool


@dataclass
class Collector:
    """What has come so far."""

    url: str = ""
    answers: bool = True
    traces: list[ExportTraceServiceRequest] = field(default_factory=list)
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)
    came: threading.Condition = field(default_factory=threading.Condition)
    over: threading.Event = field(default_factory=threading.Event)

    def take(self, path: str, data: bytes) -> None:
        with self.came:
            if path == "/v1/traces":
                self.traces.append(ExportTraceServiceRequest.FromString(data))
            elif path == "/v1/metrics":
                self.metrics.append(ExportMetricsServiceRequest.FromString(data))
            else:
                raise AssertionError(f"nothing is sent to {path}")
            self.came.notify_all()

    def spans(self) -> list[SeenSpan]:
        with self.came:
            return [
                _seen(span, _values(resource.resource.attributes))
                for request in self.traces
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]

    def trace(self, id: str) -> list[SeenSpan]:
        """All spans of a trace, in the order in which they began."""
        return sorted((span for span in self.spans() if span.trace == id), key=lambda span: span.start)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until enough has come."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self.came:
            while not holds():
                left = deadline - time.monotonic()
                assert left > 0, f"never came: {what}; {sorted({span.name for span in self.spans()})}"
                self.came.wait(min(left, 0.5))

    def histograms(self, name: str) -> list[HistogramDataPoint]:
        """The points of a histogram in what came last of it, one for each set of attributes."""
        with self.came:
            every = [
                list(metric.histogram.data_points)
                for request in self.metrics
                for resource in request.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
                if metric.name == name
            ]
        return every[-1] if every else []


def _seen(span: Any, resource: dict[str, Any]) -> SeenSpan:
    return SeenSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        resource["service.name"],
        resource["service.instance.id"],
        span.start_time_unix_nano / 1e9,
        span.end_time_unix_nano / 1e9,
        _values(span.attributes),
        tuple(event.name for event in span.events),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def collecting(set_environment: Callable[[str, str], object], *, answers: bool = True) -> Iterator[Collector]:
    """Listen, and have processes that start from now on send here. One that `answers` not reads and says nothing."""
    collector = Collector(answers=answers)

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if not collector.answers:
                collector.over.wait(PATIENCE_SECONDS)
                return
            collector.take(self.path, gzip.decompress(data) if self.headers["Content-Encoding"] == "gzip" else data)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}"
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, **SETTINGS}.items():
            set_environment(name, value)
        try:
            yield collector
        finally:
            collector.over.set()
            server.shutdown()
            serving.join(PATIENCE_SECONDS)
