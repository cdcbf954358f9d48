"""What a starting system still waits for."""

from typing import Literal

from livescale.services.supervisor.readiness import failed_models, missing_instances, missing_members
from livescale.shared.messages.membership import Member, WorkerReport, WorkerState
from livescale.shared.messages.parameters import ModelSpec
from livescale.shared.messages.registry import ModelEntry, Snapshot

TINY = ModelSpec(name="tiny", path="/m", min_instances=2)


def member(id: str, lease: Literal["alive", "dead"] = "alive") -> Member:
    return Member(service="worker", id=id, pid=1, host="h", epoch=1, lease=lease)


def worker(id: str, state: WorkerState, instance: str, model: str = "tiny") -> WorkerReport:
    return WorkerReport(id=id, epoch=1, state=state, model=model, instance=instance)


def entry(state: Literal["reading", "ready", "failed"], error: str | None = None) -> ModelEntry:
    return ModelEntry(spec=TINY, state=state, error=error)


def test_members_that_are_absent_or_dead_are_missing() -> None:
    snapshot = Snapshot(members=[member("worker-0"), member("worker-1", "dead")])
    assert missing_members(snapshot, ["worker-0", "worker-1", "host-0"]) == ["worker-1", "host-0"]


def test_a_model_is_missing_until_it_is_in_memory() -> None:
    assert missing_instances(Snapshot(), [TINY]) == ["model tiny (unknown)"]
    assert missing_instances(Snapshot(models=[entry("reading")]), [TINY]) == ["model tiny (reading)"]


def test_a_model_is_missing_until_its_least_instances_serve() -> None:
    one = [worker("worker-0", "serving", "i-1"), worker("worker-1", "loading", "i-2")]
    assert missing_instances(Snapshot(models=[entry("ready")], workers=one), [TINY]) == [
        "model tiny (1 of 2 instances)"
    ]
    two = [worker("worker-0", "serving", "i-1"), worker("worker-1", "serving", "i-2")]
    assert missing_instances(Snapshot(models=[entry("ready")], workers=two), [TINY]) == []


def test_ranks_of_one_instance_count_once_and_other_models_not() -> None:
    workers = [
        worker("worker-0", "serving", "i-1"),
        worker("worker-1", "serving", "i-1"),
        worker("worker-2", "serving", "i-2", model="other"),
    ]
    assert missing_instances(Snapshot(models=[entry("ready")], workers=workers), [TINY]) == [
        "model tiny (1 of 2 instances)"
    ]


def test_a_model_with_no_least_instance_only_has_to_be_in_memory() -> None:
    cold = ModelSpec(name="tiny", path="/m", min_instances=0)
    assert missing_instances(Snapshot(models=[entry("ready")]), [cold]) == []


def test_a_model_that_could_not_be_read_is_told_with_its_error() -> None:
    snapshot = Snapshot(models=[entry("failed", "no tensor lm_head")])
    assert failed_models(snapshot, ["tiny"]) == ["model tiny: no tensor lm_head"]
    assert failed_models(snapshot, ["other"]) == []
