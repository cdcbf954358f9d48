"""A request's span at the gateway: the client's child, and the parent of what others do for it."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics as conventions
from opentelemetry.trace import SpanKind, StatusCode

from livescale.services.gateway import spans
from livescale.services.gateway.generation import GenerationTimes
from livescale.services.gateway.spans import GenAiMetrics, GenerationSeconds, caller_of, measured
from livescale.shared.process import telemetry
from livescale.shared.process.otlp import Otlp
from tests.gateway.conftest import ServedGateway, serve_gateway
from tests.spans import CALLER, UNSAMPLED, context_of, trace_id

ASK = {"model": "tiny", "prompt": "one two", "max_tokens": 6, "temperature": 0.5, "seed": 7}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "one"}], "max_completion_tokens": 5}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(telemetry, "Otlp", partial(Otlp, processor=SimpleSpanProcessor(exporter)))
    return exporter


@pytest.fixture
async def served(checkpoint: Path, kept: InMemorySpanExporter) -> AsyncIterator[ServedGateway]:
    async with serve_gateway(checkpoint) as opened:
        yield opened


async def ask(served: ServedGateway, path: str, body: dict[str, object], caller: str | None = CALLER) -> int:
    headers = {} if caller is None else {"traceparent": caller, "tracestate": "vendor=1"}
    async with served.http.post(f"{served.url}{path}", json=body, headers=headers) as answer:
        await answer.read()
        return answer.status


def only(kept: InMemorySpanExporter) -> ReadableSpan:
    [span] = kept.get_finished_spans()
    return span


async def test_a_completion_is_the_client_s_child_and_the_parent_of_what_follows(
    served: ServedGateway, kept: InMemorySpanExporter
) -> None:
    assert await ask(served, "/v1/completions", ASK) == 200
    span, [submit] = only(kept), served.cluster.submitted
    context = context_of(span)
    assert (span.name, span.kind) == ("text_completion tiny", SpanKind.SERVER)
    assert trace_id(span) == CALLER[3:35]
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == CALLER[36:52]
    assert context.trace_state.get("vendor") == "1"
    assert (submit.traceparent or "")[:52] == f"00-{context.trace_id:032x}-{context.span_id:016x}"
    assert served.cluster.contexts[-1].traceparent == submit.traceparent
    attributes = dict(span.attributes or {})
    assert attributes.pop("gen_ai.response.time_to_first_chunk") > 0  # type: ignore[operator]
    assert str(attributes.pop("gen_ai.response.id")).startswith("cmpl-")
    assert attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "livescale",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.stream": False,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": len(submit.prompt),
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 2,
    }


async def test_a_chat_has_the_tokens_that_were_asked_for(served: ServedGateway, kept: InMemorySpanExporter) -> None:
    assert await ask(served, "/v1/chat/completions", CHAT, None) == 200
    span = only(kept)
    assert (span.name, span.parent) == ("chat tiny", None)
    assert (span.attributes or {})["gen_ai.request.max_tokens"] == 5


async def test_a_client_that_does_not_sample_is_believed_and_so_are_those_behind_told(
    served: ServedGateway, kept: InMemorySpanExporter
) -> None:
    assert await ask(served, "/v1/completions", ASK, UNSAMPLED) == 200
    assert kept.get_finished_spans() == ()
    [submit] = served.cluster.submitted
    assert (submit.traceparent or "")[3:35] == UNSAMPLED[3:35]
    assert int((submit.traceparent or "")[-2:], 16) & 1 == 0


async def test_a_request_that_loses_its_worker_tells_when(served: ServedGateway, kept: InMemorySpanExporter) -> None:
    served.cluster.lost_at = {1: 3}
    assert await ask(served, "/v1/completions", ASK) == 200
    assert [event.name for event in only(kept).events] == ["first_token", "submitted_again"]
    assert len({submit.traceparent for submit in served.cluster.submitted}) == 1
    assert len(served.cluster.submitted) == 2


async def test_a_request_that_fails_tells_its_error(served: ServedGateway, kept: InMemorySpanExporter) -> None:
    served.cluster.finish = "error"
    assert await ask(served, "/v1/completions", ASK) >= 500
    span = only(kept)
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"]


def test_the_time_per_token_is_the_mean_after_the_first() -> None:
    assert measured(GenerationTimes(1.0), 0).to_first_token is None
    assert measured(GenerationTimes(1.0, 3.0, 3.0), 1).per_output_token is None
    found = measured(GenerationTimes(1.0, 3.0, 7.0), 5)
    assert (found.to_first_token, found.per_output_token) == (2.0, 1.0)


@pytest.mark.parametrize("header", ["", "nonsense", CALLER[:-1], CALLER.upper(), CALLER + "\n"])
def test_a_malformed_header_is_nobody_s(header: str) -> None:
    assert caller_of({"traceparent": header}) is None
    assert caller_of({"traceparent": CALLER}) == CALLER


LABELS = {"gen_ai.request.model": "m"}


def points(reader: InMemoryMetricReader) -> dict[str, list[HistogramDataPoint]]:
    data = reader.get_metrics_data()
    assert data is not None
    [resource] = data.resource_metrics
    [scope] = resource.scope_metrics
    return {metric.name: list(metric.data.data_points) for metric in scope.metrics}  # type: ignore[arg-type]


def opened() -> tuple[GenAiMetrics, InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    return GenAiMetrics(MeterProvider([reader], shutdown_on_exit=False).get_meter("test")), reader


def test_the_names_are_those_of_the_conventions() -> None:
    assert spans.DURATION == conventions.GEN_AI_SERVER_REQUEST_DURATION
    assert spans.TO_FIRST_TOKEN == conventions.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN
    assert spans.PER_OUTPUT_TOKEN == conventions.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN
    assert spans.TOKEN_USAGE == conventions.GEN_AI_CLIENT_TOKEN_USAGE


def test_a_request_that_succeeds_is_counted_in_each() -> None:
    metrics, reader = opened()
    metrics.succeeded(2.0, [GenerationSeconds(0.5, 0.1), GenerationSeconds(0.25)], (7, 3), LABELS)
    found = points(reader)
    assert {name: (sum(one.count for one in each), sum(one.sum for one in each)) for name, each in found.items()} == {
        "gen_ai.server.request.duration": (1, 2.0),
        "gen_ai.server.time_to_first_token": (2, 0.75),
        "gen_ai.server.time_per_output_token": (1, 0.1),
        "gen_ai.client.token.usage": (2, 10.0),
    }
    [duration] = found["gen_ai.server.request.duration"]
    assert tuple(duration.explicit_bounds) == spans.DURATION_BUCKETS
    used = {dict(one.attributes or {})["gen_ai.token.type"]: one.sum for one in found["gen_ai.client.token.usage"]}
    assert used == {"input": 7, "output": 3}


def test_a_request_that_fails_is_counted_with_its_error_and_without_times() -> None:
    metrics, reader = opened()
    metrics.failed(2.0, (7, 0), "timeout", LABELS)
    found = points(reader)
    [duration] = found["gen_ai.server.request.duration"]
    assert dict(duration.attributes or {}) == {**LABELS, "error.type": "timeout"}
    assert found.keys() == {"gen_ai.server.request.duration"}
