"""A request as OpenTelemetry sees it: its span, the root of all that others do for it, and the metrics of its end.

Neither ever holds a prompt or an output. Names, units and buckets of the metrics are those of OpenTelemetry's
conventions for generative AI, which are in development. Token usage has a name there for clients alone, under which
collectors look for it, whoever tells of it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.metrics import Histogram, Meter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from livescale.services.gateway.bodies import ChatRequest, GenerationOptions, asked_tokens
from livescale.services.gateway.envelope import Usage
from livescale.services.gateway.generation import Generation, GenerationTimes
from livescale.shared.process.otlp import nanoseconds, parent, traceparent
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import Clock

DURATION = "gen_ai.server.request.duration"
TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"
PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"
TOKEN_USAGE = "gen_ai.client.token.usage"

DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TO_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0),
)
PER_OUTPUT_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKEN_USAGE_BUCKETS = tuple(float(4**power) for power in range(14))

Labels = dict[str, str]


@dataclass(frozen=True)
class GenerationSeconds:
    """What one generation took, in seconds; None for what it did not come to. `per_output_token` is the mean between
    its first token and its last."""

    to_first_token: float | None = None
    per_output_token: float | None = None


class GenAiMetrics:
    """The histograms of one gateway. They are updated once for each request, at its end."""

    def __init__(self, meter: Meter) -> None:
        def seconds(name: str, doc: str, buckets: tuple[float, ...]) -> Histogram:
            return meter.create_histogram(name, "s", doc, explicit_bucket_boundaries_advisory=buckets)

        self._duration = seconds(DURATION, "From a request's acceptance to its last token", DURATION_BUCKETS)
        self._first = seconds(
            TO_FIRST_TOKEN, "From a request's submission to its first token, if it succeeds", TO_FIRST_TOKEN_BUCKETS
        )
        self._rest = seconds(
            PER_OUTPUT_TOKEN, "Mean time between a request's tokens, if it succeeds", PER_OUTPUT_TOKEN_BUCKETS
        )
        self._tokens = meter.create_histogram(
            TOKEN_USAGE,
            "{token}",
            "Tokens of prompts and outputs",
            explicit_bucket_boundaries_advisory=TOKEN_USAGE_BUCKETS,
        )

    def succeeded(
        self, seconds: float, generations: list[GenerationSeconds], tokens: tuple[int, int], labels: Labels
    ) -> None:
        """Count a request that is complete. `tokens` are those of its prompts and of its outputs."""
        self._duration.record(seconds, labels)
        for one in generations:
            if one.to_first_token is not None:
                self._first.record(one.to_first_token, labels)
            if one.per_output_token is not None:
                self._rest.record(one.per_output_token, labels)
        self._used(tokens, labels)

    def failed(self, seconds: float, tokens: tuple[int, int], error: str, labels: Labels) -> None:
        """Count a request that did not come to its end, for which `error` is the reason in a word."""
        self._duration.record(seconds, {**labels, "error.type": error})
        self._used(tokens, labels)

    def _used(self, tokens: tuple[int, int], labels: Labels) -> None:
        given, made = tokens
        if made:  # else nothing is known to have been computed
            self._tokens.record(given, {**labels, "gen_ai.token.type": "input"})
            self._tokens.record(made, {**labels, "gen_ai.token.type": "output"})


TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
PROVIDER = "livescale"


class Tracing:
    """Begins the trace of each request, or goes on with its client's. Where no collector is named it does neither, and
    only hands the client's on."""

    def __init__(self, telemetry: Telemetry, clock: Clock) -> None:
        self._tracer = None if telemetry.spans is None else telemetry.tracer
        meter = telemetry.open_meter()
        self._metrics = None if meter is None else GenAiMetrics(meter)
        self._clock = clock

    def begin(self, headers: Mapping[str, str], body: GenerationOptions, answer_id: str) -> "RequestTrace":
        """Begin the span of a request that is going to be submitted."""
        caller, span = caller_of(headers), None
        if self._tracer is not None:
            span = self._tracer.start_span(
                f"{operation_of(body)} {body.model}",
                parent(caller, headers.get("tracestate")),
                SpanKind.SERVER,
                asked(body, answer_id),
            )
            caller = traceparent(span)
        return RequestTrace(body, caller, span, self._metrics, self._clock, self._clock.now())


@dataclass(frozen=True)
class RequestTrace:
    """One request's span, where it is traced, and its metrics, where they are sent. `traceparent` names the span, or
    the client's where this gateway traces nothing; it is None where nobody does."""

    body: GenerationOptions
    traceparent: str | None
    span: Span | None
    metrics: GenAiMetrics | None
    clock: Clock
    began: float

    def end(self, usage: Usage, generations: Sequence[Generation], error: str | None) -> None:
        """End the span and count the request. `error` is the code of its error, None where there was none."""
        if self.metrics is not None:
            self._count(self.metrics, usage, generations, error)
        if self.span is not None and self.span.is_recording():
            self._end(self.span, usage, generations, error)

    def _count(self, metrics: GenAiMetrics, usage: Usage, generations: Sequence[Generation], error: str | None) -> None:
        seconds, tokens = self.clock.now() - self.began, (usage.prompt_tokens, usage.completion_tokens)
        labels = {
            "gen_ai.operation.name": operation_of(self.body),
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self.body.model,
            "gen_ai.response.model": self.body.model,
        }
        if error is None:
            each = [measured(one.times, len(one.generated)) for one in generations]
            metrics.succeeded(seconds, each, tokens, labels)
        else:
            metrics.failed(seconds, tokens, error, labels)

    def _end(self, span: Span, usage: Usage, generations: Sequence[Generation], error: str | None) -> None:
        epoch = self.clock.wall() - self.clock.now()
        span.set_attribute("gen_ai.usage.input_tokens", usage.prompt_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", usage.completion_tokens)
        span.set_attribute("gen_ai.usage.cache_read.input_tokens", sum(one.cached_tokens for one in generations))
        reasons = [one.finish_reason for one in generations if one.finish_reason is not None]
        if reasons:
            span.set_attribute("gen_ai.response.finish_reasons", reasons)
        first = min((one.times.first for one in generations if one.times.first is not None), default=None)
        if first is not None:
            span.set_attribute("gen_ai.response.time_to_first_chunk", first - self.began)
            span.add_event("first_token", timestamp=nanoseconds(epoch + first))
        for one in generations:
            for at, reason in one.times.losses:
                span.add_event("submitted_again", {"reason": reason}, nanoseconds(epoch + at))
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))
        span.end()


def measured(times: GenerationTimes, tokens: int) -> GenerationSeconds:
    """What a generation of so many tokens took."""
    if times.first is None or times.last is None:
        return GenerationSeconds()
    rest = (times.last - times.first) / (tokens - 1) if tokens > 1 else None
    return GenerationSeconds(times.first - times.started, rest)


def operation_of(body: GenerationOptions) -> str:
    """The operation's name in OpenTelemetry's conventions for generative AI."""
    return "chat" if isinstance(body, ChatRequest) else "text_completion"


def asked(body: GenerationOptions, answer_id: str) -> dict[str, str | int | float | bool]:
    """What a client asked for, as the attributes of its request's span."""
    every = {
        "gen_ai.operation.name": operation_of(body),
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": body.model,
        "gen_ai.request.max_tokens": asked_tokens(body),
        "gen_ai.request.stream": body.stream,
        "gen_ai.request.temperature": body.temperature,
        "gen_ai.request.top_p": body.top_p,
        "gen_ai.request.top_k": body.top_k,
        "gen_ai.request.seed": body.seed,
        "gen_ai.response.id": answer_id,
        "gen_ai.response.model": body.model,
    }
    return {name: value for name, value in every.items() if value is not None}


def caller_of(headers: Mapping[str, str]) -> str | None:
    """The caller's W3C traceparent; None where the header is missing or malformed."""
    header = headers.get("traceparent", "")
    return header if TRACEPARENT.fullmatch(header) else None
