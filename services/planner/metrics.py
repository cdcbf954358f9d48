"""The planner's metrics for Prometheus: instances, scales and their phases, and predicted against measured times."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import get_args

from livescale.shared.messages.membership import Role, WorkerReport
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.process.telemetry import Telemetry

PHASES = ("planned", "commanded", "first_byte", "live", "first_layer", "whole", "serving", "spare")
ROLES: tuple[Role, ...] = get_args(Role)
THERE = ("loading", "live", "serving")
RATIOS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
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
            "From the decision to a new instance's first token, without the time in which no request came to it",
            buckets=BUCKETS,
        )
        self._predictions = Predictions(telemetry)
        self._target = telemetry.gauge("livescale_planner_target_instances", "Instances last asked for", ["model_name"])
        self._asked: set[str] = set()
        self._reports = reports
        telemetry.watch_gauge(
            "livescale_planner_actual_instances", "Instances that serve or load now", ["model_name"], self._count
        )
        self._scales = telemetry.counter(
            "livescale_scales_total", "Scales that ended, by outcome", ["state"], [("done",), ("failed",)]
        )
        self._roles = telemetry.counter(
            "livescale_role_switches_total",
            "Instances that were given another role",
            ["role"],
            [(role,) for role in ROLES],
        )

    def role_set(self, role: Role) -> None:
        """Count an instance that was given another role."""
        self._roles.labels(role).inc()

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
        self._predictions.ended(record)
        switched = {phase.node for phase in record.phases if phase.name == "switched"}
        for move in record.moves:
            if move.worker in switched:
                self.role_set(move.role)
        for phase in record.phases:
            if phase.name in PHASES:
                self._phases.labels(phase.name).observe(max(0.0, phase.at - record.decision.at))

    def first_token(self, seconds: float) -> None:
        """Observe how long a new instance took from the decision to its first token."""
        self._first_token.observe(max(0.0, seconds))


class Predictions:
    """Compares, for each target of a scale out, when it was to be whole with when it was."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._predicted = telemetry.histogram(
            "livescale_scale_predicted_whole_seconds",
            "From the first command to send to whole parameters at a target, as predicted",
            buckets=BUCKETS,
        )
        self._measured = telemetry.histogram(
            "livescale_scale_measured_whole_seconds",
            "From the first command to send to whole parameters at a target, as measured",
            buckets=BUCKETS,
        )
        self._ratio = telemetry.histogram(
            "livescale_scale_prediction_ratio",
            "Seconds to whole parameters at a target, measured divided by predicted",
            buckets=RATIOS,
        )

    def ended(self, record: ScaleRecord) -> None:
        """Compare what was predicted of a scale with what came; one that failed says nothing."""
        if record.state != "done":
            return
        for predicted, measured in compare(record):
            self._predicted.observe(predicted)
            self._measured.observe(measured)
            self._ratio.observe(measured / predicted)


def compare(record: ScaleRecord) -> list[tuple[float, float]]:
    """Predicted and measured seconds of each target for which both are known. They count from the first command to
    send, as predictions do."""
    begun = next((phase.at for phase in record.phases if phase.name == "commanded"), None)
    if begun is None or record.plan is None:
        return []
    whole = {phase.node: phase.at - begun for phase in record.phases if phase.name == "whole"}
    known = ((seconds, whole[target]) for target, seconds in record.plan.predicted.items() if target in whole)
    return [(predicted, max(0.0, measured)) for predicted, measured in known if predicted > 0]
