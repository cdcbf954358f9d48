import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator

import pytest
import structlog

from livescale.shared.process.otlp import parent, traceparent
from livescale.shared.process.telemetry import Telemetry, configure_logging


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_logs_are_one_object_a_line_that_names_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("worker", "worker-3", format="json")
    structlog.get_logger().info("layer_loaded", index=3, path=Exception)
    structlog.get_logger().debug("not shown")
    logging.getLogger("a.library").warning("said %s", "so")
    captured = capsys.readouterr()
    assert captured.out == ""
    loaded, library = [json.loads(text) for text in captured.err.splitlines()]
    assert {"event": "layer_loaded", "index": 3, "service": "worker", "id": "worker-3"}.items() <= loaded.items()
    assert {"event": "said so", "level": "warning", "id": "worker-3"}.items() <= library.items()


def test_a_traceback_shows_no_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "json"):
        configure_logging("worker", "worker-3", format=form)
        secret_prompt = "dear " + "diary"
        try:
            raise KeyError(len(secret_prompt))
        except KeyError:
            structlog.get_logger().exception("failed")
        captured = capsys.readouterr().err
        assert "KeyError" in captured
        assert "dear diary" not in captured


def test_families_are_there_at_zero() -> None:
    telemetry = Telemetry("router", "router-0")
    requests = telemetry.counter("livescale_requests_total", "Requests", ["code"], known=[("200",), ("429",)])
    telemetry.histogram("livescale_ttft_seconds", "TTFT", buckets=[0.1, 1])
    telemetry.gauge("vllm:num_requests_running", "Running", ["model_name"])
    requests.labels("200").inc()
    text = telemetry.exposition()
    assert 'livescale_requests_total{code="200"} 1.0' in text
    assert 'livescale_requests_total{code="429"} 0.0' in text
    assert 'livescale_ttft_seconds_bucket{le="1.0"} 0.0' in text
    assert "# TYPE vllm:num_requests_running gauge" in text
    assert "_created" not in text


def test_a_name_outside_the_conventions_is_refused() -> None:
    with pytest.raises(ValueError, match="requests_total must start with livescale_ or vllm:"):
        Telemetry("router", "router-0").counter("requests_total", "Requests")


def test_counts_are_read_when_they_are_asked_for() -> None:
    telemetry, counts = Telemetry("router", "router-0"), {"sent": 1}
    telemetry.watch_counts("livescale_bus_messages_total", "Messages", "outcome", lambda: counts)
    counts["sent"] = 7
    assert 'livescale_bus_messages_total{outcome="sent"} 7.0' in telemetry.exposition()


def test_a_gauge_that_is_watched_is_read_when_it_is_asked_for() -> None:
    telemetry = Telemetry("registry", "registry-0")
    found: dict[tuple[str, ...], float] = {("spare",): 1.0}
    telemetry.watch_gauge("livescale_registry_workers", "Workers", ["state"], lambda: found)
    found["serving",] = 2.0
    shown = telemetry.exposition()
    assert "# TYPE livescale_registry_workers gauge" in shown
    assert 'livescale_registry_workers{state="serving"} 2.0' in shown


async def test_without_an_endpoint_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    telemetry = Telemetry("router", "router-0")
    with telemetry.tracer.start_as_current_span("request") as span:
        assert traceparent(span) is None
    assert telemetry.spans is None
    assert telemetry.open_meter() is None
    assert parent(None) is None
    await telemetry.shutdown()


async def test_a_dead_collector_delays_the_end_no_longer_than_the_limit(
    monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{closed_port}")
    before = set(threading.enumerate())
    telemetry = Telemetry("router", "router-0")
    meter = telemetry.open_meter()
    assert meter is not None
    meter.create_counter("some").add(1)
    with telemetry.tracer.start_as_current_span("request") as span:
        header = traceparent(span)
        assert header is not None
    with telemetry.tracer.start_as_current_span("child", context=parent(header)) as child:
        assert child.get_span_context().trace_id == span.get_span_context().trace_id
    started = time.monotonic()
    await telemetry.shutdown(seconds=0.2)
    assert time.monotonic() - started < 8  # an export is tried for ten seconds
    for thread in set(threading.enumerate()) - before:
        await asyncio.to_thread(thread.join, 5)
        assert not thread.is_alive(), f"{thread.name} goes on trying"
