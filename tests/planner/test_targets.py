"""The progress of the targets of a scale-out, the flows along which they receive, and which are stranded."""

import pytest

from livescale.services.planner.targets import REPLAN_SECONDS, FlowsUnderWay, ScaleTargets, StrandedTargets, TargetState
from livescale.shared.messages.transfers import PlannedInstance
from tests.planner.samples import chain


def test_an_instance_is_as_far_as_its_slowest_rank_and_failed_with_any_of_them() -> None:
    targets, instance = ScaleTargets(["a", "b"]), PlannedInstance(id="i", ranks=["a", "b"])
    targets.move("a", TargetState.ACCEPTED)
    targets.move("a", TargetState.WHOLE)
    assert targets.lowest(instance) is TargetState.COMMANDED
    targets.move("b", TargetState.FAILED)
    assert targets.lowest(instance) is TargetState.FAILED
    with pytest.raises(ValueError, match="a target cannot go from failed to whole"):
        targets.move("b", TargetState.WHOLE)


def test_all_who_receive_through_somebody_are_behind_it() -> None:
    flows = FlowsUnderWay([*chain("s", "a", "b"), *chain("s", "c", ticket=90)])
    assert flows.behind(["a"]) == {"b"}
    assert flows.behind(["s"]) == {"a", "b", "c"}
    flows.drop(["b"])
    assert flows.behind(["a"]) == set()
    assert [flow.receiver for flow in flows.out_of("s")] == ["a", "c"]


def test_a_sender_is_told_once_and_not_before_all_its_receivers_are_ready() -> None:
    flows = FlowsUnderWay([*chain("s", "a", "b"), *chain("s", "c", ticket=90)])
    assert [sender for sender, _ in flows.take_unsent(ready={"a", "b"}, awaited={"c"})] == ["a"]
    [(sender, sent)] = flows.take_unsent(ready={"a", "b", "c"}, awaited=set())
    assert (sender, [flow.receiver for flow in sent]) == ("s", ["a", "c"])
    assert list(flows.take_unsent(ready={"a", "b", "c"}, awaited=set())) == []


def test_the_first_new_plan_is_due_at_once_and_the_next_a_while_after_it() -> None:
    stranded = StrandedTargets(now=1.0)
    assert not stranded.is_due(1.0)
    stranded.add("a", "s is gone", sender="s")
    assert stranded.is_due(1.0)
    stranded.looked(1.0, "nobody holds it")
    assert not stranded.is_due(1.0 + REPLAN_SECONDS / 2)
    assert stranded.is_due(1.0 + REPLAN_SECONDS)
    assert stranded.problem == "; nobody holds it"
    assert (stranded.forget("a"), stranded.avoid) == ("s is gone", {"s"})
    assert stranded.problem == ""
