"""What a starting system waits for, and which processes are started again or killed."""

from typing import Literal

import pytest

from livescale.services.supervisor.policy import (
    BUS_SECONDS,
    LATE_SECONDS,
    REGISTRY_SECONDS,
    GiveUp,
    Hung,
    Kill,
    Restart,
    RestartPolicy,
    failed_models,
    missing_instances,
    missing_members,
)
from livescale.shared.messages.membership import LeaseState, Member, WorkerReport, WorkerState
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry, Snapshot

TINY = ModelSpec(name="tiny", path="/m", min_instances=2)

PATIENCE = 1.0
RUNNING = {"registry-0": 1, "router-0": 7, "worker-0": 8}


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


def test_delays_double_and_are_bounded() -> None:
    policy = RestartPolicy(most_quick_deaths=8, first_delay_seconds=0.1, longest_delay_seconds=0.5)
    delays = [policy.after_death(1.0, "exit status 1") for _ in range(5)]
    assert [each.delay_seconds for each in delays if isinstance(each, Restart)] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_quick_deaths_in_a_row_end_in_giving_up_with_the_reason() -> None:
    policy = RestartPolicy(most_quick_deaths=3)
    assert isinstance(policy.after_death(0.1, "exit status 1"), Restart)
    assert isinstance(policy.after_death(0.1, "exit status 1"), Restart)
    last = policy.after_death(0.1, "exit status 1")
    assert isinstance(last, GiveUp)
    assert "exit status 1" in last.reason


def test_a_long_life_forgives_the_quick_deaths_before_it() -> None:
    policy = RestartPolicy(most_quick_deaths=2)
    policy.after_death(0.1, "exit status 1")
    assert policy.after_death(60.0, "killed by SIGKILL") == Restart(0.1, "killed by SIGKILL after 60 s")
    assert isinstance(policy.after_death(0.1, "exit status 1"), Restart)


@pytest.mark.parametrize(("lived", "gives_up"), [(9.99, True), (10.0, False)])
def test_the_limit_of_a_quick_death_is_exact(lived: float, gives_up: bool) -> None:
    policy = RestartPolicy(quick_seconds=10.0, most_quick_deaths=1)
    assert isinstance(policy.after_death(lived, "exit status 0"), GiveUp) is gives_up


def silent(id: str = "router-0", pid: int = 7, lease: LeaseState = "dead") -> Member:
    return Member(service="router", id=id, pid=pid, host="box", epoch=3, lease=lease)


def looks(hung: Hung, member: Member, start: float, end: float, step: float = 0.5) -> list[tuple[float, Kill]]:
    found = []
    for index in range(round((end - start) / step) + 1):
        now = start + index * step
        found += [(now, kill) for kill in hung.on_members([member], RUNNING, now)]
    return found


def test_a_dead_process_that_still_runs_is_killed_after_a_while_and_once_a_while() -> None:
    hung = Hung(PATIENCE)
    [(first, kill), (second, _)] = looks(hung, silent(), 0.0, 3.0)
    assert (first, kill.name, kill.pid) == (PATIENCE, "router-0", 7)
    assert second >= first + PATIENCE


def test_a_process_that_joins_again_in_time_lives() -> None:
    hung = Hung(PATIENCE)
    assert looks(hung, silent(), 0.0, 0.5) == []
    assert looks(hung, silent(lease="alive"), 1.0, 1.0) == []
    assert looks(hung, silent(), 1.5, 2.0) == []


def test_a_lease_that_died_with_an_earlier_process_says_nothing_of_this_one() -> None:
    assert looks(Hung(PATIENCE), silent(pid=6), 0.0, 10.0) == []


def test_a_process_on_another_machine_is_not_killed() -> None:
    assert looks(Hung(PATIENCE), silent(id="worker-9"), 0.0, 10.0) == []


def test_a_suspect_is_not_killed() -> None:
    assert looks(Hung(PATIENCE), silent(lease="suspect"), 0.0, 10.0) == []


def test_a_supervisor_that_was_away_itself_judges_everything_anew() -> None:
    hung = Hung(PATIENCE)
    assert looks(hung, silent(), 0.0, 0.5) == []
    late = 0.5 + LATE_SECONDS + 1
    assert looks(hung, silent(), late, late + 0.5) == []
    assert len(looks(hung, silent(), late + PATIENCE, late + PATIENCE)) == 1


def test_a_registry_that_answers_nothing_is_killed() -> None:
    hung = Hung(PATIENCE)
    silent = [kill for step in range(20) for kill in hung.on_silence(RUNNING, step * 0.5)]
    assert [(kill.name, kill.pid) for kill in silent] == [("registry-0", 1)]
    assert f"{REGISTRY_SECONDS:.1f} s" in silent[0].reason


def test_a_registry_that_answers_now_and_then_lives() -> None:
    hung = Hung(PATIENCE)
    for step in range(20):
        assert hung.on_silence(RUNNING, step * 2.0) == []
        assert hung.on_silence(RUNNING, step * 2.0 + 1.0) == []
        assert hung.on_members([], RUNNING, step * 2.0 + 1.5) == []


def test_a_server_of_our_own_that_answers_nothing_is_killed_and_the_next_one_has_its_own_time() -> None:
    hung, ours = Hung(PATIENCE), {"nats": 3}
    times = [step * 2.0 for step in range(round(BUS_SECONDS / 2))]
    assert [kill for now in times for kill in hung.on_deafness(ours, now)] == []
    [kill] = hung.on_deafness(ours, BUS_SECONDS)
    assert (kill.name, kill.pid) == ("nats", 3)
    assert [kill for step in range(4) for kill in hung.on_deafness({"nats": 4}, 14.0 + 2 * step)] == []


def test_a_server_that_answers_now_and_then_or_is_not_ours_lives() -> None:
    hung = Hung(PATIENCE)
    for step in range(20):
        assert hung.on_deafness({"nats": 3}, step * 4.0) == []
        assert hung.on_deafness({"nats": 3}, step * 4.0 + 2.0) == []
        assert hung.on_members([], {"nats": 3}, step * 4.0 + 3.0) == []
    assert [kill for step in range(20) for kill in hung.on_deafness(RUNNING, 100.0 + step)] == []
