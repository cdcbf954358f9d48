"""A request's time at a worker, cut into spans from the moments that were noted."""

from itertools import pairwise

import pytest

from livescale.services.worker.instance.metrics import WorkerMetrics
from livescale.services.worker.instance.spans import (
    LoadTimes,
    RequestTimes,
    WorkerSpans,
    request_spans,
    transfer_span,
)
from livescale.services.worker.scheduling.batch import Batch, ScheduledChunk
from livescale.shared.messages.requests import FinishReason, Submit, Tokens
from livescale.shared.messages.transfers import Load
from livescale.shared.process.otlp import scale_traceparent
from livescale.shared.process.telemetry import Telemetry
from tests.control.fakes import manifest
from tests.spans import CALLER, UNSAMPLED, seconds, trace_id, traced

REQUEST = Submit(request_id="r-1", model="m", gateway="g", prompt=[1] * 8, deadline=100.0, traceparent=CALLER)


class Still:
    """A clock that stands at 20 s, which is 1020 s since the epoch."""

    away = 0.0

    def now(self) -> float:
        return 20.0

    def wall(self) -> float:
        return 1_020.0


def times(**more: float | None) -> RequestTimes:
    return RequestTimes(REQUEST, admitted=8.0, **{"came": 10.0, **more})  # type: ignore[arg-type]


def cut(one: RequestTimes) -> list[tuple[str, float, float]]:
    return [(span.name, span.start, span.end) for span in request_spans(one, 20.0, None)]


@pytest.mark.parametrize(
    ("one", "parts"),
    [
        (times(), [("queue", 10.0, 20.0)]),
        (times(started=12.0), [("queue", 10.0, 12.0), ("prefill", 12.0, 20.0)]),
        (times(started=12.0, first=15.0), [("queue", 10.0, 12.0), ("prefill", 12.0, 15.0), ("decode", 15.0, 20.0)]),
        (times(first=9.0), [("decode", 10.0, 20.0)]),  # another worker prefilled it
        (times(live=11.0), [("queue", 10.0, 11.0), ("prefill", 11.0, 20.0)]),
        (
            times(live=11.0, started=14.0, first=15.0),
            [("queue", 10.0, 11.0), ("prefill", 11.0, 15.0), ("decode", 15.0, 20.0)],
        ),
    ],
)
def test_a_request_s_time_is_cut_without_gaps(one: RequestTimes, parts: list[tuple[str, float, float]]) -> None:
    assert cut(one) == parts
    assert all(earlier[2] == later[1] for earlier, later in pairwise(parts))


def test_the_last_part_tells_why_it_ended_and_prefill_what_was_computed() -> None:
    one = times(started=12.0, first=15.0)
    one.tokens, one.cached_tokens = 3, 5
    queue, prefill, decode = request_spans(one, 20.0, "cancelled", {"livescale.reason": "gone"})
    assert (queue.error, prefill.error, decode.error) == (None, None, "cancelled")
    assert (prefill.attributes["livescale.prefill.tokens"], prefill.attributes["livescale.prefill.live"]) == (3, False)
    assert (decode.attributes["gen_ai.usage.output_tokens"], decode.attributes["livescale.reason"]) == (3, "gone")


def serve(reason: FinishReason = "length", request: Submit = REQUEST) -> list[tuple[str, tuple[float, float]]]:
    """One request through a worker's metrics, and the spans that come of it."""
    telemetry = Telemetry("worker", "w-1")
    kept = traced(telemetry)
    metrics = WorkerMetrics(telemetry, "w-1", WorkerSpans.of(telemetry, Still()))
    metrics.serve("m", lambda: None)
    metrics.admitted(request, 10.0)
    chunk = ScheduledChunk("r-1", (1,) * 8, start=0, blocks=range(1), decode=False)
    metrics.stepped(Batch(step=1, chunks=(chunk,)), begun=12.0)
    for index, (now, finish) in enumerate(((13.0, None), (14.0, reason))):
        row = Tokens(request_id="r-1", index=index, token_ids=[5], finish_reason=finish)
        metrics.emitted([row], now)
    spans = kept.get_finished_spans()
    assert {trace_id(span) for span in spans} <= {CALLER[3:35]}
    return [(span.name, seconds(span)) for span in spans]


def test_what_the_metrics_note_becomes_spans_in_seconds_since_the_epoch() -> None:
    assert serve() == [("queue", (1010.0, 1012.0)), ("prefill", (1012.0, 1013.0)), ("decode", (1013.0, 1014.0))]


@pytest.mark.parametrize("caller", [None, UNSAMPLED])
def test_a_request_that_is_not_traced_makes_no_spans(caller: str | None) -> None:
    plain = Submit(request_id="r-1", model="m", gateway="g", prompt=[1], deadline=100.0, traceparent=caller)
    assert serve(request=plain) == []


def test_a_request_that_moves_is_told_by_the_worker_that_it_leaves_and_by_the_one_that_it_comes_to() -> None:
    telemetry = Telemetry("worker", "w-1")
    kept = traced(telemetry)
    metrics = WorkerMetrics(telemetry, "w-1", spans := WorkerSpans.of(telemetry, Still()))
    metrics.serve("m", lambda: None)
    metrics.admitted(REQUEST, 10.0)
    metrics.went_live("r-1", 11.0)
    metrics.went_live("r-1", 12.0)
    metrics.moved("r-1", 13.0, "w-2", layers=2)
    spans.taken(REQUEST, "w-1", 13.0, 13.5, layers=2, size_bytes=4096)
    queue, prefill, hand_off = kept.get_finished_spans()
    assert (seconds(queue), seconds(prefill)) == ((1010.0, 1011.0), (1011.0, 1013.0))
    assert (prefill.attributes or {})["livescale.handoff.to"] == "w-2"
    assert (hand_off.name, seconds(hand_off)) == ("handoff", (1013.0, 1013.5))
    assert (hand_off.attributes or {})["livescale.handoff.bytes"] == 4096


def test_a_request_that_is_lost_tells_why() -> None:
    telemetry = Telemetry("worker", "w-1")
    kept = traced(telemetry)
    metrics = WorkerMetrics(telemetry, "w-1", WorkerSpans.of(telemetry, Still()))
    metrics.serve("m", lambda: None)
    metrics.admitted(REQUEST, 10.0)
    metrics.lost("r-1", 11.0, "a rank is gone")
    [queue] = kept.get_finished_spans()
    assert ((queue.attributes or {})["error.type"], (queue.attributes or {})["livescale.reason"]) == (
        "lost",
        "a rank is gone",
    )


def test_a_load_is_a_span_of_its_scale_with_each_block_as_a_moment() -> None:
    load = Load(
        plan_id="scale-1",
        model="m",
        instance="i-1",
        role="colocated",
        rank=0,
        manifest=manifest("v").of_shard(0),
        inflows=[],
        chunk_bytes=1 << 20,
        max_model_len=512,
        epoch=1,
    )
    blocks = [(0, 11.0), (1, 12.0)]
    span = transfer_span(load, LoadTimes(10.0, scale_traceparent("scale-1"), blocks), 12.5, (100, 50), None)
    assert (span.name, span.start, span.end, span.error) == ("transfer", 10.0, 12.5, None)
    assert [(moment.name, moment.at) for moment in span.moments] == [("block_ready", 11.0), ("block_ready", 12.0)]
    assert (
        span.attributes["livescale.transfer.received_bytes"],
        span.attributes["livescale.transfer.shared_bytes"],
    ) == (
        100,
        50,
    )
