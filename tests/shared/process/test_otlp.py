"""What leaves a process by OTLP, as a collector that listens here reads it."""

import time

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from livescale.shared.process.otlp import (
    Moment,
    Otlp,
    TimedSpan,
    is_wanted,
    scale_traceparent,
    span_context,
    traceparent,
)
from livescale.shared.process.telemetry import Telemetry
from tests.collector import collecting
from tests.spans import CALLER, UNSAMPLED, context_of, seconds, trace_id


def test_a_scale_s_span_has_the_same_ids_wherever_they_are_made() -> None:
    first, again = span_context(scale_traceparent("scale-1")), span_context(scale_traceparent("scale-1"))
    assert first.is_valid
    assert first.trace_flags.sampled
    assert (first.trace_id, first.span_id) == (again.trace_id, again.span_id)


def test_two_scales_are_two_traces() -> None:
    one, other = span_context(scale_traceparent("scale-1")), span_context(scale_traceparent("scale-2"))
    assert one.trace_id != other.trace_id
    assert one.span_id != other.span_id


WORK = TimedSpan(
    "work",
    10.0,
    12.5,
    {"livescale.request.id": "r-1", "unknown": None},
    moments=(Moment("half", 11.0),),
    links=(scale_traceparent("scale-1"),),
    children=(TimedSpan("part", 10.5, 11.0, error="lost"),),
)


def written(parent: str | None) -> InMemorySpanExporter:
    kept = InMemorySpanExporter()
    writer = Otlp("router", "router-0", SimpleSpanProcessor(kept)).spans
    assert writer is not None
    writer.write(parent, [WORK])
    return kept


def test_what_is_over_becomes_spans_of_its_caller_s_trace() -> None:
    part, work = written(CALLER).get_finished_spans()
    assert work.parent is not None
    assert part.parent is not None
    assert (trace_id(work), trace_id(part)) == (CALLER[3:35], CALLER[3:35])
    assert f"{work.parent.span_id:016x}" == CALLER[36:52]
    assert part.parent.span_id == context_of(work).span_id
    assert (seconds(work), seconds(part)) == ((10.0, 12.5), (10.5, 11.0))
    assert dict(work.attributes or {}) == {"livescale.request.id": "r-1"}
    assert [(event.name, event.timestamp) for event in work.events] == [("half", 11_000_000_000)]
    assert [link.context.trace_id for link in work.links] == [span_context(scale_traceparent("scale-1")).trace_id]
    assert part.status.status_code is StatusCode.ERROR
    assert dict(part.attributes or {}) == {"error.type": "lost"}


@pytest.mark.parametrize("parent", [UNSAMPLED, None, "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_nothing_is_sent_of_what_is_not_sampled_or_has_no_caller(parent: str | None) -> None:
    assert written(parent).get_finished_spans() == ()


def test_a_caller_s_decision_is_kept_whatever_this_process_would_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    assert len(written(CALLER).get_finished_spans()) == 2


def test_a_root_has_the_ids_that_were_chosen_and_its_children_random_ones() -> None:
    kept = InMemorySpanExporter()
    writer = Otlp("planner", "planner-0", SimpleSpanProcessor(kept)).spans
    assert writer is not None
    chosen = scale_traceparent("scale-1")
    root = writer.open_root(WORK, chosen)
    assert (traceparent(root) or "")[:52] == chosen[:52]
    writer.close(root, WORK)
    part, work = kept.get_finished_spans()
    assert work.parent is None
    assert trace_id(part) == trace_id(work) == chosen[3:35]
    assert context_of(part).span_id != context_of(work).span_id


@pytest.mark.parametrize(
    ("environment", "traces", "metrics"),
    [
        ({}, False, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_METRICS_EXPORTER": "none"}, True, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "true"}, False, False),
    ],
)
def test_the_environment_says_what_is_sent(
    environment: dict[str, str], traces: bool, metrics: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (is_wanted("TRACES"), is_wanted("METRICS")) == (traces, metrics)


async def test_a_collector_gets_spans_and_metrics_with_the_process_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting(monkeypatch.setenv) as collector:
        telemetry = Telemetry("router", "router-7")
        meter = telemetry.open_meter()
        assert telemetry.spans is not None
        assert meter is not None
        telemetry.spans.write(CALLER, [WORK])
        meter.create_histogram("gen_ai.server.request.duration", "s").record(0.25, {"gen_ai.request.model": "m"})
        await telemetry.shutdown()
        found = {span.name: span for span in collector.spans()}
        assert {span.trace for span in found.values()} == {CALLER[3:35]}
        assert found["work"].parent == CALLER[36:52]
        assert (found["work"].service, found["work"].instance) == ("livescale-router", "router-7")
        [duration] = collector.histograms("gen_ai.server.request.duration")
        assert (duration.count, duration.sum) == (1, 0.25)


async def test_a_collector_that_never_answers_delays_nothing_but_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting(monkeypatch.setenv, answers=False):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "120")
        telemetry = Telemetry("router", "router-0")
        assert telemetry.spans is not None
        started = time.monotonic()
        for _ in range(5_000):  # more than the queue holds
            telemetry.spans.write(CALLER, [WORK])
        assert time.monotonic() - started < 60
        started = time.monotonic()
        await telemetry.shutdown(seconds=0.2)
        assert time.monotonic() - started < 60
