"""The metrics of the gateway: requests, tokens, and what went wrong."""

from dataclasses import dataclass, field

from prometheus_client import Counter, Histogram

from livescale.shared.process.telemetry import Telemetry, Values
from livescale.shared.runtime.clock import Clock

TBT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
REJECTION_CODES = ("rate_limit_exceeded", "queue_full", "overloaded", "model_loading", "model_failed", "timeout")
CLIENT_CLOSED_REQUEST = 499
ENDPOINTS = ("/v1/completions", "/v1/chat/completions")


@dataclass(frozen=True)
class ModelMetrics:
    """One model's metrics, which are updated with every token.

    `held` has the requests that have no token yet, with the seconds of the clock at which each was accepted.
    """

    ttft: Histogram
    tbt: Histogram
    prompt: Counter
    generated: Counter
    held: dict[str, float] = field(default_factory=dict)


class GatewayMetrics:
    """The gateway's metric families. Those with a label for the model show zeros as soon as the model is known, the
    others from the start."""

    def __init__(self, telemetry: Telemetry, clock: Clock) -> None:
        self._clock = clock
        self._of_model: dict[str, ModelMetrics] = {}
        self.requests = telemetry.counter(
            "livescale_gateway_requests_total",
            "Requests by endpoint and status",
            ["endpoint", "status"],
            known=[(endpoint, "200") for endpoint in ENDPOINTS],
        )
        self.rejections = telemetry.counter(
            "livescale_gateway_rejections_total",
            "Requests that could not be served, by error code",
            ["code"],
            known=[(code,) for code in REJECTION_CODES],
        )
        self.streams = telemetry.gauge("livescale_gateway_streams", "Requests under way")
        self.router_waits = telemetry.gauge(
            "livescale_gateway_router_waits", "Requests held because no router can be reached"
        )
        self.disconnects = telemetry.counter(
            "livescale_gateway_disconnects_total", "Clients that left before their answer was whole"
        )
        self.replays = telemetry.counter(
            "livescale_gateway_replays_total", "Times a worker was asked to send tokens again"
        )
        self.resumptions = telemetry.counter(
            "livescale_gateway_resumptions_total", "Requests submitted again because a worker was lost"
        )
        self._open_models(telemetry)

    def _open_models(self, telemetry: Telemetry) -> None:
        """Declare the families that have a label for the model."""
        telemetry.watch_gauge(
            "livescale_gateway_held", "Requests accepted and still without a token", ["model_name"], self._count_held
        )
        telemetry.watch_gauge(
            "livescale_gateway_oldest_held_seconds",
            "How long the request that waits longest has had no token; 0 where none waits",
            ["model_name"],
            self._oldest_held,
        )
        self._prompt = telemetry.counter(
            "livescale_gateway_prompt_tokens_total", "Prompt tokens of requests that were begun", ["model_name"]
        )
        self._generated = telemetry.counter(
            "livescale_gateway_generation_tokens_total", "Tokens handed to clients", ["model_name"]
        )
        self._ttft = telemetry.histogram(
            "livescale_gateway_time_to_first_token_seconds",
            "From a request's submission to its first token",
            ["model_name"],
        )
        self._tbt = telemetry.histogram(
            "livescale_gateway_time_between_tokens_seconds",
            "From one arrival of a request's tokens to the next, per token",
            ["model_name"],
            buckets=TBT_BUCKETS,
        )

    def _count_held(self) -> Values:
        return {(model,): float(len(each.held)) for model, each in self._of_model.items()}

    def _oldest_held(self) -> Values:
        # Requests are in the order in which they were accepted.
        now = self._clock.now()
        return {(model,): now - next(iter(each.held.values()), now) for model, each in self._of_model.items()}

    def of_model(self, model: str) -> "ModelMetrics":
        """The metrics of a model; looked up by their labels once, and not for every token."""
        known = self._of_model.get(model)
        if known is None:
            known = ModelMetrics(
                self._ttft.labels(model),
                self._tbt.labels(model),
                self._prompt.labels(model),
                self._generated.labels(model),
            )
            self._of_model[model] = known
        return known

    def count_answer(self, endpoint: str, status: int, whole: bool) -> None:
        """Count one answer; `whole` is false where the client left before its end."""
        self.requests.labels(endpoint, str(status)).inc()
        if not whole or status == CLIENT_CLOSED_REQUEST:
            self.disconnects.inc()
