"""What the planner shows to Prometheus."""

from shared.messages.scaling import ScaleRecord
from shared.telemetry import Telemetry

PHASES = ("planned", "commanded", "first_byte", "whole", "serving", "spare")
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class PlannerMetrics:
    def __init__(self, telemetry: Telemetry) -> None:
        self._phases = telemetry.histogram(
            "livescale_scale_phase_seconds",
            "From the decision to each phase of a scale",
            ["phase"],
            [(phase,) for phase in PHASES],
            BUCKETS,
        )
        self._first_token = telemetry.histogram(
            "livescale_scale_to_first_token_seconds",
            "From the decision to a new instance's first token",
            buckets=BUCKETS,
        )
        self._scales = telemetry.counter(
            "livescale_scales_total", "Scales that ended, by outcome", ["state"], [("done",), ("failed",)]
        )

    def ended(self, record: ScaleRecord) -> None:
        self._scales.labels(record.state).inc()
        for phase in record.phases:
            if phase.name in PHASES:
                self._phases.labels(phase.name).observe(max(0.0, phase.at - record.decision.at))

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(max(0.0, seconds))
