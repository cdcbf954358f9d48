"""The router's metrics, as Prometheus reads them."""

from collections.abc import Iterable

from livescale.shared.messages.membership import QueueLoad
from livescale.shared.process.telemetry import Telemetry

DECISION_BUCKETS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1)


class RouterMetrics:
    """What a router counts and times, for its system port."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._decision = telemetry.histogram(
            "livescale_router_decision_seconds",
            "Time to queue a request and place what has room",
            buckets=DECISION_BUCKETS,
        )
        self._depth = telemetry.gauge(
            "livescale_router_queue_depth", "Requests that wait at the router", ["model_name"]
        )
        self._in_office = telemetry.gauge(
            "livescale_router_in_office", "1 at the router that is in office, 0 at those that stand by"
        )
        self._admitted = telemetry.counter("livescale_router_admissions_total", "Requests that a worker took")
        self._ways = telemetry.counter(
            "livescale_router_ways_total",
            "Requests given to workers, by way: split where another one is to decode them, local where not",
            ["model_name", "way"],
        )
        self._prefilling = telemetry.gauge(
            "livescale_router_prefilling_instances",
            "Instances that are to prefill for others to decode, where --disaggregation auto chooses",
            ["model_name"],
        )
        self._moves = telemetry.counter(
            "livescale_router_moves_total",
            "Requests that workers which drain, or prefill, were to hand over to others, by what became of it",
            ["outcome"],
            [("taken",), ("kept",)],
        )
        self._lost = telemetry.counter("livescale_router_lost_total", "Started requests whose worker is gone")
        self._refused = telemetry.counter(
            "livescale_router_refusals_total",
            "Requests refused, by code",
            ["code"],
            [(code,) for code in ("404", "409", "429", "503", "504")],
        )

    def decided(self, seconds: float) -> None:
        self._decision.observe(seconds)

    def queues(self, depths: dict[str, int]) -> None:
        for model, waiting in depths.items():
            self._depth.labels(model).set(waiting)

    def holds_office(self, it_does: bool) -> None:
        self._in_office.set(int(it_does))

    def admitted(self, model: str, split: bool) -> None:
        self._admitted.inc()
        self._ways.labels(model, "split" if split else "local").inc()

    def chosen(self, loads: Iterable[QueueLoad]) -> None:
        """Take over how many instances are to prefill."""
        for load in loads:
            if load.prefilling is not None:
                self._prefilling.labels(load.model).set(load.prefilling)

    def moved(self, *, taken: bool) -> None:
        self._moves.labels("taken" if taken else "kept").inc()

    def lost(self) -> None:
        self._lost.inc()

    def refused(self, code: int) -> None:
        self._refused.labels(str(code)).inc()
