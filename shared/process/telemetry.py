"""Logs, metrics and traces of one process.

Logs are structlog events on stderr. Metrics are prometheus-client families in a registry of the process's own,
there from the start, at zero. Traces go out by OTLP where OTEL_EXPORTER_OTLP_ENDPOINT is set, and cost nothing
elsewhere: a few spans for each request and scale, made when it is over, and none for a token or a step.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import prometheus_client
import structlog
from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from livescale.shared.process.otlp import Otlp, SpanWriter

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
PREFIXES = ("livescale_", "vllm:")

Values = Mapping[tuple[str, ...], float]


def configure_logging(service: str, id: str, level: str = "info", format: str = "text") -> None:
    """Send structlog's events, and what libraries log, to stderr; every line names this process."""
    shown = getattr(logging, level.upper())
    renderer: structlog.typing.Processor = structlog.dev.ConsoleRenderer(
        # The default shows local variables, which may hold prompts.
        colors=sys.stderr.isatty(),
        exception_formatter=structlog.dev.plain_traceback,
    )
    if format == "json":
        renderer = structlog.processors.JSONRenderer(
            lambda event, **_: msgspec.json.encode(event, enc_hook=str).decode()
        )
    common: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _bind(service=service, id=id),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if format == "json":
        common.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*common, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(shown),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    from_libraries = logging.StreamHandler(sys.stderr)
    from_libraries.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[from_libraries], level=max(shown, logging.WARNING), force=True)


def _bind(**fields: str) -> structlog.typing.Processor:
    def bind(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**event, **fields}

    return bind


class Telemetry:
    """A process's metrics and its tracer. Declare every family once, when the actor is built."""

    def __init__(self, service: str, id: str) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._otlp = Otlp(service, id)

    @property
    def tracer(self) -> Tracer:
        """Where spans are started that last; without a collector it does nothing."""
        return self._otlp.tracer

    @property
    def spans(self) -> SpanWriter | None:
        """What makes spans of what is over; None where nothing is traced."""
        return self._otlp.spans

    def open_meter(self) -> Meter | None:
        """The meter of OpenTelemetry's own metrics; None where no collector wants them."""
        return self._otlp.open_meter()

    def counter(
        self, name: str, doc: str, labels: Sequence[str] = (), known: Iterable[tuple[str, ...]] = ()
    ) -> Counter:
        """Declare a counter.

        Label values in `known` are shown, at zero, from the start; gauges and histograms do the same.
        """
        counter = Counter(_checked(name), doc, labels, registry=self.registry)
        for values in known:
            counter.labels(*values)
        return counter

    def gauge(self, name: str, doc: str, labels: Sequence[str] = (), known: Iterable[tuple[str, ...]] = ()) -> Gauge:
        gauge = Gauge(_checked(name), doc, labels, registry=self.registry)
        for values in known:
            gauge.labels(*values)
        return gauge

    def histogram(
        self,
        name: str,
        doc: str,
        labels: Sequence[str] = (),
        known: Iterable[tuple[str, ...]] = (),
        buckets: Sequence[float] = TTFT_BUCKETS,
    ) -> Histogram:
        histogram = Histogram(_checked(name), doc, labels, registry=self.registry, buckets=buckets)
        for values in known:
            histogram.labels(*values)
        return histogram

    def watch_counts(self, name: str, doc: str, label: str, counts: Callable[[], Mapping[str, int]]) -> None:
        """Declare a counter whose values are read from `counts` at every scrape."""

        def values() -> Values:
            return {(value,): count for value, count in counts().items()}

        self.registry.register(_Watched(CounterMetricFamily, _checked(name), doc, [label], values))

    def watch_gauge(self, name: str, doc: str, labels: Sequence[str], values: Callable[[], Values]) -> None:
        """Declare a gauge whose values, by label values, are read at every scrape, so that it is always current."""
        self.registry.register(_Watched(GaugeMetricFamily, _checked(name), doc, labels, values))

    def exposition(self) -> str:
        """All metrics of this process in Prometheus' text format."""
        return prometheus_client.generate_latest(self.registry).decode()

    async def shutdown(self, seconds: float = 2.0) -> None:
        """Send what is left of spans and metrics. A collector that does not answer costs at most `seconds`."""
        if not self._otlp.is_open:
            return
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def send() -> None:
            self._otlp.close()
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=send, daemon=True).start()
        try:
            async with asyncio.timeout(seconds):
                await done.wait()
        except TimeoutError:
            structlog.get_logger().warning("spans_not_sent", seconds=seconds)
            self._otlp.give_up()


class _Watched(Collector):
    """A metric family whose samples are read at every scrape."""

    def __init__(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        doc: str,
        labels: Sequence[str],
        values: Callable[[], Values],
    ) -> None:
        self._kind = kind
        self._family = (name, doc, labels)
        self._values = values

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        name, doc, labels = self._family
        family = self._kind(name, doc, labels=labels)
        for each, value in sorted(self._values().items()):
            family.add_metric(each, value)
        yield family


def _checked(name: str) -> str:
    if not name.startswith(PREFIXES):
        raise ValueError(f"metric {name} must start with {' or '.join(PREFIXES)}")
    return name
