"""A scale as a trace: its root, the load of each target, and the flows that bring it."""

from msgspec.structs import replace
from opentelemetry.trace import StatusCode

from livescale.services.planner.spans import ScaleSpans, scale_span
from livescale.shared.messages.scaling import Phase, ScaleRecord
from livescale.shared.process.otlp import scale_traceparent
from livescale.shared.process.telemetry import Telemetry
from tests.planner.samples import acknowledge, block_ready, decision, scale_out, transfer
from tests.spans import CALLER, context_of, seconds, traced

RECORD = ScaleRecord(
    id="scale-1",
    decision=replace(decision(), traceparent=CALLER),
    state="done",
    phases=[Phase(name="decided", at=10.0), Phase(name="first_byte", at=10.004, node="w-1")],
)


def test_a_scale_is_a_span_from_its_decision_with_its_phases_and_who_waited() -> None:
    telemetry = Telemetry("planner", "planner-0")
    kept = traced(telemetry)
    spans = ScaleSpans(telemetry.spans)
    spans.begin(RECORD)
    assert (spans.traceparent("scale-1") or "")[:52] == scale_traceparent("scale-1")[:52]
    spans.end(RECORD)
    assert spans.traceparent("scale-1") is None
    [span] = kept.get_finished_spans()
    assert (span.name, seconds(span)) == ("scale m", (10.0, 10.004))
    assert [(event.name, event.timestamp) for event in span.events] == [
        ("decided", 10_000_000_000),
        ("first_byte", 10_004_000_000),
    ]
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [CALLER[3:35]]


def test_a_planner_that_takes_over_ends_the_same_span() -> None:
    ids = set()
    for _ in range(2):
        telemetry = Telemetry("planner", "planner-0")
        kept = traced(telemetry)
        ScaleSpans(telemetry.spans).end(RECORD)
        [span] = kept.get_finished_spans()
        ids.add((context_of(span).trace_id, context_of(span).span_id))
    assert len(ids) == 1


def test_a_scale_that_failed_tells_so() -> None:
    telemetry = Telemetry("planner", "planner-0")
    kept = traced(telemetry)
    ScaleSpans(telemetry.spans).end(replace(RECORD, state="failed", outcome="w-1 is gone"))
    [span] = kept.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["livescale.scale.outcome"] == "w-1 is gone"


def test_without_a_collector_nothing_is_kept() -> None:
    spans = ScaleSpans(None)
    spans.begin(RECORD)
    assert spans.traceparent("scale-1") is None
    spans.end(RECORD)


def test_each_target_is_a_load_and_each_flow_a_part_of_it() -> None:
    scale = scale_out(["a", "b"])
    sends = acknowledge(scale, scale.start(11.0))
    acknowledge(scale, sends)
    blocks = len(scale.delivery.orders.manifest.of_shard(0).blocks)
    for index in range(blocks):
        scale.on_block(block_ready("a", index, at=12.0 + index), 12.0 + index)
    scale.on_transfer(transfer("a", "whole", at=16.0), 16.0)
    scale._serving("a", 16.5)
    record = scale.record()
    a, b = scale_span(record).children
    assert ((a.start, a.end, a.error), b.error) == ((11.0, 16.5, None), "not_served")
    [to_a], [to_b] = a.children, b.children
    assert (to_a.attributes["livescale.flow.sender"], to_a.attributes["livescale.flow.receiver"]) == ("s", "a")
    assert (to_a.start, to_a.end, to_a.error) == (11.0, 12.0 + blocks - 1, None)
    assert (to_b.attributes["livescale.flow.sender"], to_b.error) == ("a", "not_arrived")
