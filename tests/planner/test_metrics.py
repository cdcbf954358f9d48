from livescale.services.planner.metrics import PlannerMetrics
from livescale.shared.messages.membership import WorkerReport, WorkerState
from livescale.shared.messages.scaling import Phase, ScaleRecord
from livescale.shared.process.telemetry import Telemetry
from tests.planner.samples import decision

RECORD = ScaleRecord(
    id="scale-1",
    decision=decision(),
    state="done",
    phases=[Phase(name="decided", at=10.0), Phase(name="first_byte", at=10.004, node="w-1")],
)


def test_phases_are_measured_from_the_decision() -> None:
    telemetry = Telemetry("planner", "planner-0")
    PlannerMetrics(telemetry, list).ended(RECORD)
    shown = telemetry.exposition()
    assert 'livescale_scale_phase_seconds_bucket{le="0.005",phase="first_byte"} 1.0' in shown
    assert 'livescale_scale_phase_seconds_bucket{le="0.0025",phase="first_byte"} 0.0' in shown
    assert 'livescale_scales_total{state="done"} 1.0' in shown
    assert 'livescale_scales_total{state="failed"} 0.0' in shown


def worker(id: str, state: WorkerState, model: str | None = "m", rank: int = 0) -> WorkerReport:
    return WorkerReport(id=id, epoch=1, state=state, model=model, instance=f"i-{id}", rank=rank)


def test_instances_are_counted_when_somebody_asks_and_are_none_once_they_are_gone() -> None:
    telemetry, reports = Telemetry("planner", "planner-0"), [worker("a", "serving"), worker("b", "loading")]
    metrics = PlannerMetrics(telemetry, lambda: reports)
    metrics.accepted("asleep", 1)
    shown = telemetry.exposition()
    assert 'livescale_planner_actual_instances{model_name="m"} 2.0' in shown
    assert 'livescale_planner_actual_instances{model_name="asleep"} 0.0' in shown
    reports[:] = [
        worker("a", "draining"),
        worker("b", "spare", None),
        worker("c", "serving", "t"),
        worker("d", "serving", "t", 1),
    ]
    shown = telemetry.exposition()
    assert 'livescale_planner_actual_instances{model_name="m"} 0.0' in shown
    assert 'livescale_planner_actual_instances{model_name="t"} 1.0' in shown
