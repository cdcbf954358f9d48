from msgspec import structs

from livescale.services.planner.metrics import PlannerMetrics, compare
from livescale.shared.messages.membership import WorkerReport, WorkerState
from livescale.shared.messages.scaling import Phase, ScaleRecord
from livescale.shared.messages.transfers import Plan
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


def whole(target: str, at: float) -> Phase:
    return Phase(name="whole", at=at, node=target)


def test_what_was_predicted_of_each_target_is_compared_with_what_came() -> None:
    made = Plan(
        id="scale-1",
        model="m",
        version="v",
        instances=[],
        flows=[],
        size_bytes=1,
        predicted={"w-1": 2.0, "w-2": 4.0, "w-3": 0.0},
    )
    begun = [Phase(name="planned", at=9.0), Phase(name="commanded", at=10.0)]
    done = structs.replace(RECORD, plan=made, phases=[*begun, whole("w-1", 13.0), whole("w-3", 13.0)])
    assert compare(done) == [(2.0, 3.0)]
    assert compare(structs.replace(done, phases=[whole("w-1", 13.0)])) == []
    assert compare(RECORD) == []
    telemetry = Telemetry("planner", "planner-0")
    metrics = PlannerMetrics(telemetry, list)
    metrics.ended(structs.replace(done, state="failed"))
    metrics.ended(done)
    shown = telemetry.exposition()
    assert "livescale_scale_predicted_whole_seconds_sum 2.0" in shown
    assert "livescale_scale_measured_whole_seconds_sum 3.0" in shown
    assert 'livescale_scale_prediction_ratio_bucket{le="1.5"} 1.0' in shown
    assert 'livescale_scale_prediction_ratio_bucket{le="1.25"} 0.0' in shown
    assert "livescale_scale_prediction_ratio_count 1.0" in shown


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
