"""OpenTelemetry's own metrics of a model server, for collectors that are sent metrics and scrape nothing.

Names, units and buckets are those of its conventions for generative AI, which are in development. Token usage has a
name there for clients alone, under which collectors look for it, whoever tells of it.
"""

from dataclasses import dataclass

from opentelemetry.metrics import Histogram, Meter

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
