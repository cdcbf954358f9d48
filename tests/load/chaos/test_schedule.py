"""Chaos: its load, its schedule, its patient client, and the undisturbed run."""

import itertools

import pytest

from livescale.load.chaos.load import ChaosSettings
from livescale.load.chaos.schedule import LOADING, REST_SECONDS, ROLES, SOURCE, Fault, FaultTargets, plan_faults
from livescale.load.chaos.system import choose_targets, stack_settings
from tests.checkpoints import tiny_checkpoint

SEEDS = range(20)
TARGETS = FaultTargets(("worker-0", "worker-1", "worker-2"), ("router-0", "nats"), 3)


def hits(faults: tuple[Fault, ...]) -> list[Fault]:
    """Kills and freezes at their times, those that follow a scale included."""
    found = [fault for fault in faults if fault.kind != "scale"]
    for fault in faults:
        if fault.then is not None:
            found.append(Fault(fault.at + fault.then.at, fault.then.kind, fault.then.target, fault.then.seconds))
    return sorted(found, key=lambda fault: fault.at)


def test_the_same_seed_makes_the_same_schedule_and_another_seed_another() -> None:
    assert plan_faults(1, 300, TARGETS) == plan_faults(1, 300, TARGETS)
    assert plan_faults(1, 300, TARGETS) != plan_faults(2, 300, TARGETS)
    assert {fault.kind for fault in plan_faults(1, 300, TARGETS)} == {"kill", "freeze", "scale"}


def test_stalls_come_beside_the_other_faults_and_leave_the_end_calm() -> None:
    for seed in SEEDS:
        faults = plan_faults(seed, 300, TARGETS, stalls=True)
        stalls = [fault for fault in faults if fault.kind == "stall"]
        assert tuple(fault for fault in faults if fault.kind != "stall") == plan_faults(seed, 300, TARGETS)
        assert 15 < len(stalls) < 50
        assert 0 < min(stall.seconds for stall in stalls) < max(stall.seconds for stall in stalls) <= 5
        assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
        assert faults[-1].at < 285
        assert faults == plan_faults(seed, 300, TARGETS, stalls=True)


def test_roles_change_beside_the_other_faults_and_leave_the_end_calm() -> None:
    for seed in SEEDS:
        faults = plan_faults(seed, 300, TARGETS, roles=TARGETS.workers)
        switches = [fault for fault in faults if fault.kind == "role"]
        assert tuple(fault for fault in faults if fault.kind != "role") == plan_faults(seed, 300, TARGETS)
        assert {(one.target, one.role) for one in switches} == set(itertools.product(TARGETS.workers, ROLES))
        assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
        assert faults[-1].at < 285
    assert str(switches[0]) == f"have {switches[0].target} be {switches[0].role}"


def test_a_target_comes_back_before_it_is_hit_again_and_the_end_is_calm() -> None:
    for seed in SEEDS:
        faults = plan_faults(seed, 300, TARGETS)
        last: dict[str, Fault] = {}
        for fault in hits(faults):
            before = last.get(fault.target)
            if before is not None and fault.target not in (LOADING, SOURCE):
                assert fault.at >= before.at + before.seconds + REST_SECONDS - 1e-9
            last[fault.target] = fault
        assert faults[-1].at < 285
        assert all(1 <= fault.instances <= 3 for fault in faults if fault.kind == "scale")


def test_every_target_is_hit_in_a_long_run_and_scales_while_they_move_parameters() -> None:
    faults = plan_faults(0, 600, TARGETS)
    assert {fault.target for fault in hits(faults)} == {*TARGETS.workers, *TARGETS.others, LOADING, SOURCE}
    ambushed = [fault for fault in faults if fault.then is not None]
    assert all(fault.kind == "scale" and fault.instances == TARGETS.instances for fault in ambushed)


def test_workers_are_frozen_for_longer_than_others() -> None:
    frozen = [fault for fault in hits(plan_faults(4, 900, TARGETS)) if fault.kind == "freeze"]
    of_workers = [fault.seconds for fault in frozen if fault.target not in TARGETS.others]
    of_others = [fault.seconds for fault in frozen if fault.target in TARGETS.others]
    assert 7 < max(of_workers) <= 10
    assert 1 < max(of_others) <= 4


def test_only_the_services_that_are_named_are_disturbed() -> None:
    chosen = choose_targets(ChaosSettings(disturb="worker,nats,router", workers=2))
    assert chosen.workers == ["worker-0", "worker-1"]
    assert chosen.others == ["nats", "router-0", "router-1"]
    assert choose_targets(ChaosSettings(disturb="router")).workers == []
    with pytest.raises(ValueError, match="there is no service 'rooter'"):
        choose_targets(ChaosSettings(disturb="rooter"))


def test_by_default_every_process_of_the_system_may_be_hit() -> None:
    settings = ChaosSettings()
    services = {name.rpartition("-")[0] or name for name in choose_targets(settings).names}
    assert services == {"worker", "gateway", "router", "registry", "planner", "monitor", "host", "nats"}
    stack = stack_settings(settings, tiny_checkpoint("llama"))
    assert (stack.gateways, stack.routers) == (2, 2)
    assert stack.link_rate > 0


def test_faults_fall_on_the_others_where_no_worker_may_be_hit() -> None:
    faults = plan_faults(3, 300, FaultTargets((), ("router-0", "registry-0"), 3))
    assert {fault.target for fault in hits(faults)} == {"router-0", "registry-0"}
