"""A span per request, in OpenTelemetry's words for generative models. Never a prompt, never an output."""

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from livescale.services.gateway.bodies import ChatRequest, GenerationOptions
from livescale.shared.process import telemetry


def start_span(tracer: trace.Tracer, body: GenerationOptions, answer_id: str, traceparent: str | None) -> Span:
    operation = "chat" if isinstance(body, ChatRequest) else "text_completion"
    asked = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "livescale",
        "gen_ai.request.model": body.model,
        "gen_ai.request.max_tokens": body.max_tokens,
        "gen_ai.request.temperature": body.temperature,
        "gen_ai.request.top_p": body.top_p,
        "gen_ai.request.top_k": body.top_k,
        "gen_ai.request.seed": body.seed,
        "gen_ai.response.id": answer_id,
        "gen_ai.response.model": body.model,
    }
    return tracer.start_span(
        f"{operation} {body.model}",
        context=telemetry.parent(traceparent),
        kind=SpanKind.SERVER,
        attributes={name: value for name, value in asked.items() if value is not None},
    )


def end_span(span: Span, prompt_tokens: int, completion_tokens: int, error: str | None) -> None:
    span.set_attribute("gen_ai.usage.input_tokens", prompt_tokens)
    span.set_attribute("gen_ai.usage.output_tokens", completion_tokens)
    if error is not None:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))
    span.end()
