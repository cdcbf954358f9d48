"""Targets that go live, and the instances that take requests over from them."""

import pytest
from msgspec.structs import replace

from livescale.services.planner.live import choose_live
from livescale.services.planner.plans.plan import TransferPlan
from livescale.services.planner.running_scale import NodeCommand
from livescale.services.planner.scale_out import ScaleOut
from livescale.shared.messages.live import Help
from livescale.shared.messages.membership import LeaseChanged, WorkerReport
from livescale.shared.messages.transfers import Load
from tests.planner.samples import (
    acknowledge,
    block_ready,
    happened,
    load,
    loading,
    member,
    scale_out,
    serving,
    transfer,
)

PLAN = TransferPlan(policy="chains", flows=(), targets=("a", "b"), tails=("b",))
EACH = [["a"], ["b"]]


def full(worker: str, kv_blocks: int, **more: str) -> WorkerReport:
    return serving(worker, 0, load=replace(load(), kv_blocks_used=kv_blocks), **more)


def helps(commands: list[NodeCommand]) -> list[tuple[str, list[str]]]:
    """Return (helper, target) of commands that must all be HELPs."""
    found = []
    for command in commands:
        assert isinstance(command.message, Help)
        found.append((command.node, [node.id for node in command.message.targets]))
    return found


def live(targets: list[str], *workers: WorkerReport, tails: list[str] | None = None) -> ScaleOut:
    """A scale all of whose targets have accepted to load."""
    scale = scale_out(targets, live=tails if tails is not None else targets, workers=workers)
    acknowledge(scale, scale.start(10.5))
    return scale


def dead(id: str, epoch: int = 1) -> LeaseChanged:
    return LeaseChanged(service="worker", id=id, epoch=epoch, state="dead", reason="silent", at=12.0)


def test_by_default_the_tails_of_chains_go_live_and_every_hop_where_that_is_set() -> None:
    assert choose_live("off", [PLAN], EACH, every_hop=True) == ([], [])
    tails, [why] = choose_live("zigzag", [PLAN], EACH, every_hop=False)
    assert (tails, why) == (
        ["b"],
        "requests run at b from the first layer on, in the mode zigzag: nothing is sent on from there",
    )
    assert choose_live("best-effort", [PLAN], EACH, every_hop=True)[0] == ["a", "b"]


def test_where_every_target_sends_parameters_on_nobody_goes_live_and_the_plan_says_why() -> None:
    forwarding = TransferPlan(policy="binomial", flows=(), targets=("a", "b"), tails=())
    assert choose_live("zigzag", [forwarding], EACH, every_hop=False) == (
        [],
        ["no target takes requests before it is whole: every target sends parameters on"],
    )


def test_all_ranks_are_to_send_nothing_on_and_the_first_takes_requests() -> None:
    teams = [["a", "x"], ["b", "y"]]
    others = TransferPlan(policy="chains", flows=(), targets=("x", "y"), tails=("y",))
    assert choose_live("zigzag", [PLAN, others], teams, every_hop=False)[0] == ["b"]
    assert choose_live("zigzag", [PLAN, others], teams, every_hop=True)[0] == ["a", "b"]
    crossed = TransferPlan(policy="chains", flows=(), targets=("y", "x"), tails=("x",))
    assert choose_live("zigzag", [PLAN, crossed], teams, every_hop=False)[0] == []


def test_only_live_targets_are_loaded_in_the_mode_of_the_plan() -> None:
    scale = scale_out(["a", "b"], live=["b"])
    loads = [command.message for command in scale.start(10.5) if isinstance(command.message, Load)]
    assert [(one.instance, one.live) for one in loads] == [("i-a", "off"), ("i-b", "zigzag")]
    assert (scale.plan.live, scale.plan.live_targets) == ("zigzag", ["b"])


def test_a_target_is_helped_once_it_has_begun_to_load() -> None:
    scale = scale_out(["a"], live=["a"], workers=[serving("s")])
    [load] = scale.start(10.5)
    assert scale.helps() == []
    scale.acknowledged(load, 11.0)
    [command] = scale.helps()
    assert helps([command]) == [("s", ["a"])]
    assert isinstance(command.message, Help)
    assert (command.message.plan_id, command.message.version, command.message.epoch) == ("scale-1", "v", 1)
    assert command.message.targets[0].address == member("a").address
    assert scale.helps() == []


def test_that_the_target_loads_is_known_from_its_report_too() -> None:
    scale = scale_out(["a"], live=["a"], workers=[serving("s")])
    scale.start(10.5)
    scale.on_report(loading("a", 1), 11.0)
    assert helps(scale.helps()) == [("s", ["a"])]


def test_as_many_help_as_there_are_live_targets_the_emptiest_first() -> None:
    workers = [full("s", 5), full("t", 2), full("u", 2), full("x", 0, version="other"), full("y", 0, state="draining")]
    assert helps(live(["a"], *workers).helps()) == [("t", ["a"])]
    assert helps(live(["a", "b"], *workers).helps()) == [("t", ["a", "b"]), ("u", ["a", "b"])]
    assert helps(live(["a", "b"], *workers, tails=["b"]).helps()) == [("t", ["b"])]


def test_a_helper_stays_one_however_full_it_becomes() -> None:
    scale = live(["a"], full("s", 0), full("t", 1))
    assert helps(scale.helps()) == [("s", ["a"])]
    scale.on_report(full("s", 9), 11.0)
    assert scale.helps() == []


@pytest.mark.parametrize("is_last_refused", [False, True])
def test_helpers_of_many_targets_hear_of_several_at_once_and_of_all_in_the_end(is_last_refused: bool) -> None:
    targets = [f"t{number}" for number in range(64)]
    scale = scale_out(targets, live=targets, workers=[serving(f"s{number}") for number in range(64)])
    loads, told = scale.start(10.5), list[tuple[str, list[str]]]()
    for command in loads[:-1]:
        scale.acknowledged(command, 11.0)
        told += helps(scale.helps())
    if is_last_refused:
        scale.refused(loads[-1], "it is full", 11.0)
    else:
        scale.acknowledged(loads[-1], 11.0)
    told += helps(scale.helps())
    assert told[0] == ("s0", ["t0"])  # the first waits for nobody
    left = targets[:-1] if is_last_refused else targets
    assert list(dict(told).values()) == [left] * len(left)
    assert len(told) < 1000  # 2,080 where each is told alone


def test_the_reason_of_help_names_some_of_many_targets() -> None:
    targets = [f"t{number}" for number in range(20)]
    commands = live(targets, serving("s")).helps()
    assert [command.reason.partition("t15")[2] for command in commands] == [", 4 more"]


@pytest.mark.parametrize("how", ["dead", "draining", "another version", "refused"])
def test_another_takes_the_place_of_a_helper_that_cannot_help_any_more(how: str) -> None:
    scale = live(["a"], full("s", 0), full("t", 1))
    [command] = scale.helps()
    match how:
        case "dead":
            scale.on_lease(dead("s"), 12.0)
        case "draining":
            scale.on_report(serving("s", state="draining"), 12.0)
        case "another version":
            scale.on_report(serving("s", version="next"), 12.0)
        case "refused":
            scale.refused(command, "it is draining", 12.0)
    scale.check_invariants()
    assert helps(scale.helps()) == [("t", ["a"])]


def test_a_helper_that_refused_is_asked_again_once_it_says_that_it_serves() -> None:
    scale = live(["a"], serving("s"))
    scale.refused(scale.helps()[0], "no answer", 12.0)
    assert scale.helps() == []
    scale.on_report(serving("s"), 12.5)
    assert helps(scale.helps()) == [("s", ["a"])]


def test_an_old_process_that_died_says_nothing_of_the_one_that_helps() -> None:
    scale = live(["a"], serving("s"))
    scale.helps()
    scale.on_lease(dead("s", epoch=0), 12.0)
    assert scale.helps() == []


def test_helpers_are_told_when_a_target_is_lost_and_when_the_last_is() -> None:
    scale = live(["a", "b"], serving("s"))
    assert helps(scale.helps()) == [("s", ["a", "b"])]
    scale.on_transfer(transfer("b", "failed"), 12.0)
    assert helps(scale.helps()) == [("s", ["a"])]
    scale.on_transfer(transfer("a", "failed"), 12.0)
    assert scale.state == "failed"
    assert helps(scale.helps()) == [("s", [])]
    assert scale.helps() == []


def test_a_scale_that_nobody_serves_for_yet_gets_help_from_its_first_instance() -> None:
    scale = live(["a", "b"])
    assert scale.helps() == []
    acknowledge(scale, scale.on_transfer(transfer("a", "whole"), 12.0))
    scale.on_report(replace(loading("a"), state="serving", version="v"), 12.0)
    assert helps(scale.helps()) == [("a", ["b"])]


def test_a_target_that_serves_is_helped_until_it_says_itself_that_it_needs_none() -> None:
    scale = live(["a"], serving("s"))
    scale.helps()
    acknowledge(scale, scale.on_transfer(transfer("a", "whole"), 12.0))
    assert scale.state == "done"
    assert scale.helps() == []


def test_the_record_tells_when_a_target_went_live_and_who_helped() -> None:
    scale = live(["a"], serving("s"))
    [command] = scale.helps()
    scale.acknowledged(command, 11.5)
    scale.on_block(block_ready("a", 0, at=12.0), 12.0)
    scale.on_report(loading("a", 1, "live"), 12.1)  # requests wait there, and nothing can be run
    scale.on_block(block_ready("a", 1, at=13.0), 13.0)
    scale.on_report(loading("a", 2, "live"), 13.1)
    scale.on_report(loading("a", 3, "live"), 14.0)
    scale.on_instance(happened("first_layer", "a", 13.5), 13.5)
    scale.on_instance(happened("first_token", "a", 14.5), 14.5)
    told = [(phase.name, phase.node, phase.at, phase.detail) for phase in scale.record().phases]
    assert told[-4:] == [
        ("helps", "s", 11.5, "take requests over from a"),
        ("live", "a", 13.0, ""),
        ("first_layer", "a", 13.5, ""),
        ("first_token", "a", 14.5, ""),
    ]


def test_a_planner_that_takes_a_live_scale_over_tells_the_helpers_again() -> None:
    before = live(["a"], serving("s"))
    before.helps()
    after = scale_out(["a"], live=["a"], workers=[serving("s")])
    assert after.take_over(before.record(), {"a": loading("a", 2, "live")}, 20.0) == []
    assert helps(after.helps()) == [("s", ["a"])]
    assert after.live == {"a"}


def test_a_target_that_left_while_there_was_no_planner_is_helped_by_nobody() -> None:
    before = live(["a"], serving("s"))
    after = scale_out(["a"], live=["a"], workers=[serving("s")])
    after.take_over(before.record(), {}, 20.0)
    assert after.helps() == []
    assert after.live == frozenset()
