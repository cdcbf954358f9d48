"""What becomes of a delivery when targets or their senders are lost."""

from tests.planner.samples import (
    acknowledge,
    broken,
    chain,
    died,
    inflows,
    loading,
    member,
    names,
    outcome,
    outflows,
    phases,
    refuse,
    replan_along,
    scale_out,
    serving,
    started,
    transfer,
)


def test_a_target_that_refuses_fails_alone_and_those_behind_it_get_another_sender() -> None:
    scale = scale_out(["a", "b", "c"])
    commands = scale.start(10.5)
    scale.acknowledged(commands[2], 11.0)
    assert refuse(scale, commands[1], "busy") == [("Abort", "b")]
    assert scale.reserved == {"a", "c"}
    assert outflows(scale.acknowledged(commands[0], 11.5)) == [("s", "a", 77)]
    assert scale.receiving == {"a"}
    loads = replan_along(scale, "a", "c")
    assert inflows(loads) == [("c", "a", 90)]
    assert outflows(acknowledge(scale, loads)) == [("a", "c", 90)]
    for worker in ("a", "c"):
        acknowledge(scale, scale.on_transfer(transfer(worker, "whole"), 13.0))
    assert outcome(scale) == ("failed", "b did not load: busy")


def test_a_sender_that_refuses_is_replaced_and_avoided() -> None:
    scale = scale_out(["a"])
    [send] = acknowledge(scale, scale.start(10.5))
    assert refuse(scale, send, "gone") == []
    assert scale.delivery.stranded.avoid >= {"s"}
    assert inflows(replan_along(scale, "t", "a")) == [("a", "t", 90)]


def test_a_target_that_fails_leaves_who_received_from_it_to_another() -> None:
    scale = started(["a", "b", "c", "d"])
    scale.on_transfer(transfer("c", "whole"), 12.0)
    aborts = scale.on_transfer(transfer("b", "failed", error="cut off"), 12.0)
    # c was whole before, and still feeds d; a is ahead and goes on.
    assert names(aborts) == [("Abort", "b")]
    assert scale.reserved == {"a", "c", "d"}
    assert scale.coming == {"i-a", "i-c", "i-d"}
    assert not scale.wants_plan(12.0)
    scale.on_report(serving("c"), 12.5)
    for worker in ("a", "d"):
        acknowledge(scale, scale.on_transfer(transfer(worker, "whole"), 13.0))
    assert outcome(scale) == ("failed", "b: cut off")
    assert [phase for phase in phases(scale) if phase[0] == "serving"] == [
        ("serving", "c", 12.5),
        ("serving", "a", 11.0),
        ("serving", "d", 11.0),
    ]


def test_a_dead_source_is_replaced_for_who_received_from_it_and_the_others_go_on() -> None:
    scale = started(["a", "b", "c"])
    assert scale.on_lease(died("s"), 12.0) == []
    assert scale.delivery.lacking == {"a": [0, 1, 2, 3]}
    # b and c are going to get nothing that a does not get.
    assert scale.receiving == frozenset()
    loads = replan_along(scale, "t", "a")
    assert inflows(loads) == [("a", "t", 90)]
    assert outflows(acknowledge(scale, loads)) == [("t", "a", 90)]
    assert scale.receiving == {"a", "b", "c"}
    assert scale.sending == {"t": 1, "a": 1, "b": 1}
    for worker in ("a", "b", "c"):
        acknowledge(scale, scale.on_transfer(transfer(worker, "whole"), 13.0))
    assert outcome(scale) == ("done", "3 new instances serve")
    story = [phase for phase in scale.record().phases if phase.name == "replanned"]
    assert [(phase.node, phase.detail) for phase in story] == [("a", "s is gone: silent; now from t")]
    plan = scale.record().plan
    assert plan is not None
    assert plan.paths == [["t", "a", "b", "c"]]


def test_what_a_stranded_target_has_already_is_not_planned_again() -> None:
    scale = started(["a"])
    scale.on_report(loading("a", blocks=2), 12.0)
    scale.on_lease(died("s"), 12.0)
    assert scale.delivery.lacking == {"a": [2, 3]}


def test_a_hop_that_dies_is_noticed_by_who_received_from_it_before_its_lease_ends() -> None:
    scale = started(["a", "b", "c"])
    assert scale.on_transfer(broken("c", 79), 12.0) == []
    assert inflows(replan_along(scale, "t", "c")) == [("c", "t", 90)]
    # What is said of the old flow comes too late.
    assert scale.on_transfer(broken("c", 79), 12.1) == []
    assert not scale.wants_plan(12.1)
    assert names(scale.on_lease(died("b"), 12.5)) == [("Abort", "b")]
    assert scale.reserved == {"a", "c"}


def test_without_another_plan_the_stranded_wait_until_the_timeout() -> None:
    scale = started(["a"])
    scale.on_lease(died("s"), 12.0)
    scale.delivery.stranded.looked(12.0, "no worker or host has the whole model in memory")
    assert not scale.wants_plan(12.4)
    assert scale.reserved == {"a"}
    assert scale.wants_plan(12.5)
    assert names(scale.tick(15.6)) == [("Abort", "a")]
    assert outcome(scale) == ("failed", "nothing arrived for 5.1 s; no worker or host has the whole model in memory")


def test_a_stranded_target_that_proves_whole_needs_no_plan() -> None:
    scale = started(["a"])
    scale.on_lease(died("s"), 12.0)
    assert names(scale.on_transfer(transfer("a", "whole"), 12.1)) == [("Serve", "a")]
    assert not scale.wants_plan(12.5)
    # It may have become so while the picture was looked at.
    assert scale.replan(chain("t", "a", ticket=90), {"t": member("t")}, [], 12.5) == []


def test_one_rank_that_fails_fails_its_instance() -> None:
    scale = started(["a", "b"], ranks=2)
    scale.on_transfer(transfer("a", "whole"), 12.0)
    assert names(scale.on_transfer(transfer("b", "failed"), 12.0)) == [("Abort", "a"), ("Abort", "b"), ("Abort", "s")]
    assert scale.state == "failed"


def test_a_node_counts_as_sending_until_who_receives_from_it_is_whole() -> None:
    scale = started(["a"])
    assert scale.sending == {"s": 1}
    scale.on_transfer(transfer("a", "whole"), 12.0)
    assert not scale.sending
