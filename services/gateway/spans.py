"""A request as OpenTelemetry sees it: its span, the root of all that others do for it, and the metrics of its end.

Neither ever holds a prompt or an output.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from livescale.services.gateway.asked import asked_tokens
from livescale.services.gateway.bodies import ChatRequest, GenerationOptions
from livescale.services.gateway.envelope import Usage
from livescale.services.gateway.gen_ai_metrics import GenAiMetrics, GenerationSeconds
from livescale.services.gateway.generation import Generation, GenerationTimes
from livescale.shared.process.otlp import nanoseconds, parent, traceparent
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import Clock

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
