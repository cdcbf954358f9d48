"""OpenTelemetry's own metrics: the names of its conventions, and each request counted once."""

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics as conventions

from livescale.services.gateway import gen_ai_metrics
from livescale.services.gateway.gen_ai_metrics import GenAiMetrics, GenerationSeconds

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
    assert gen_ai_metrics.DURATION == conventions.GEN_AI_SERVER_REQUEST_DURATION
    assert gen_ai_metrics.TO_FIRST_TOKEN == conventions.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN
    assert gen_ai_metrics.PER_OUTPUT_TOKEN == conventions.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN
    assert gen_ai_metrics.TOKEN_USAGE == conventions.GEN_AI_CLIENT_TOKEN_USAGE


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
    assert tuple(duration.explicit_bounds) == gen_ai_metrics.DURATION_BUCKETS
    used = {dict(one.attributes or {})["gen_ai.token.type"]: one.sum for one in found["gen_ai.client.token.usage"]}
    assert used == {"input": 7, "output": 3}


def test_a_request_that_fails_is_counted_with_its_error_and_without_times() -> None:
    metrics, reader = opened()
    metrics.failed(2.0, (7, 0), "timeout", LABELS)
    found = points(reader)
    [duration] = found["gen_ai.server.request.duration"]
    assert dict(duration.attributes or {}) == {**LABELS, "error.type": "timeout"}
    assert found.keys() == {"gen_ai.server.request.duration"}
