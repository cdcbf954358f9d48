"""What the planner shows to Prometheus."""

from collections import Counter
from collections.abc import Callable, Iterable

from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.process.telemetry import Telemetry

PHASES = ("planned", "commanded", "first_byte", "live", "first_layer", "whole", "serving", "spare")
THERE = ("loading", "live", "serving")
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class PlannerMetrics:
    """Counts and times scales, and counts instances by model. `reports` returns the last report of every worker."""

    def __init__(self, telemetry: Telemetry, reports: Callable[[], Iterable[WorkerReport]]) -> None:
        self._phases = telemetry.histogram(
            "livescale_scale_phase_seconds",
            "From the decision to each phase of a scale",
            ["phase"],
            [(phase,) for phase in PHASES],
            BUCKETS,
        )
        self._first_token = telemetry.histogram(
            "livescale_scale_to_first_token_seconds",
            "From the decision to a new instance's first token, without the time in which nobody asked it anything",
            buckets=BUCKETS,
        )
        self._target = telemetry.gauge("livescale_planner_target_instances", "Instances last asked for", ["model_name"])
        self._asked: set[str] = set()
        self._reports = reports
        telemetry.watch_gauge(
            "livescale_planner_actual_instances", "Instances that serve or load now", ["model_name"], self._count
        )
        self._scales = telemetry.counter(
            "livescale_scales_total", "Scales that ended, by outcome", ["state"], [("done",), ("failed",)]
        )

    def accepted(self, model: str, target: int) -> None:
        """Note how many instances of a model were asked for last."""
        self._asked.add(model)
        self._target.labels(model).set(target)

    def _count(self) -> dict[tuple[str, ...], float]:
        """Count the instances of each model that load or serve. A model that was asked for once keeps its entry, with
        zero."""
        leaders = [report for report in self._reports() if report.rank == 0 and report.state in THERE]
        present = Counter(report.model for report in leaders if report.model is not None)
        self._asked |= present.keys()
        return {(model,): float(present[model]) for model in sorted(self._asked)}

    def ended(self, record: ScaleRecord) -> None:
        """Count a scale that has ended, and observe its phases."""
        self._scales.labels(record.state).inc()
        for phase in record.phases:
            if phase.name in PHASES:
                self._phases.labels(phase.name).observe(max(0.0, phase.at - record.decision.at))

    def first_token(self, seconds: float) -> None:
        """Observe how long a new instance took from the decision to its first token."""
        self._first_token.observe(max(0.0, seconds))
