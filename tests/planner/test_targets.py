"""The progress of the targets of a scale-out, the flows along which they receive, which are stranded, and when their
blocks should be there and were."""

import pytest

from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.targets import (
    MOST_BLOCKS,
    REPLAN_SECONDS,
    FlowsUnderWay,
    ScaleTargets,
    StrandedTargets,
    TargetState,
    keeps_block_times,
    message_times,
)
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.transfers import PlannedInstance
from tests.control.fakes import BLOCKS
from tests.planner.samples import acknowledge, block_ready, chain, loading, member, scale_out


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


PREDICTED = {"a": {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}, "b": {0: 1.5, 1: 2.5, 2: 3.5, 3: 4.5}}
GONE = LeaseChanged(service="worker", id="s", epoch=5, state="dead", reason="silent", at=12.0)


def begun(at: float = 11.0) -> ScaleOut:
    """Senders were told to send at that time; the times above were predicted."""
    scale = scale_out(["a", "b"], predicted=PREDICTED)
    assert acknowledge(scale, acknowledge(scale, scale.start(10.5), at)) == []
    return scale


def test_when_blocks_were_ready_is_in_the_record() -> None:
    scale = begun()
    scale.on_block(block_ready("a", 2, at=12.5), 12.6)
    scale.on_block(block_ready("a", 2, at=12.9), 13.0)  # told twice
    scale.on_block(block_ready("somebody", 2), 13.0)
    assert scale.record().arrived == {"a": [None, None, 12.5, None]}
    assert scale.delivery.arrivals.missing("a") == [0, 1, 3]


def test_a_record_is_not_changed_by_what_comes_later() -> None:
    scale = begun()
    scale.on_block(block_ready("a", 0, at=12.0), 12.0)
    record = scale.record()
    scale.on_block(block_ready("a", 1, at=13.0), 13.0)
    assert record.arrived == {"a": [12.0, None, None, None]}


def test_a_new_plan_has_new_times_for_what_is_missing_and_keeps_those_of_what_came() -> None:
    scale = begun()
    scale.on_block(block_ready("a", 0), 12.0)
    scale.on_lease(GONE, 13.0)
    members = {id: member(id, epoch=5) for id in ("t", "a")}
    scale.replan(chain("t", "a", ticket=90), members, [], 13.0)
    scale.delivery.expect({"a": {1: 1.0, 2: 2.0, 3: 3.0}, "b": {0: 0.5, 1: 1.5, 2: 2.5, 3: 3.5}}, 13.0)
    assert scale.plan.predicted_blocks["a"] == [1.0, 3.0, 4.0, 5.0]
    assert scale.plan.predicted == {"a": 5.0, "b": 5.5}
    assert scale.record().plan == scale.plan


def test_a_new_plan_before_anybody_sent_counts_from_the_first_send_too() -> None:
    scale = scale_out(["a", "b"], predicted=PREDICTED)
    scale.start(10.5)
    scale.delivery.expect({"a": {0: 3.0}}, 12.0)
    assert scale.plan.predicted["a"] == 3.0


def test_without_a_prediction_the_old_times_stay() -> None:
    scale = begun()
    scale.delivery.expect({}, 13.0)
    assert scale.plan.predicted_blocks == message_times(PREDICTED, BLOCKS)


def test_a_planner_that_takes_over_goes_on_with_what_the_last_one_knew() -> None:
    first, second = begun(), scale_out(["a", "b"], predicted=PREDICTED)
    first.on_block(block_ready("a", 0, at=12.0), 12.0)
    report = loading("a", blocks=1)
    second.take_over(first.record(), {"a": report, "b": loading("b", blocks=0)}, 14.0)
    assert second.record().arrived == {"a": [12.0, None, None, None]}
    second.delivery.expect({"a": {1: 1.0}}, 15.0)
    assert second.plan.predicted_blocks["a"][1] == 5.0


@pytest.mark.parametrize(
    ("targets", "are_kept"), [(10, True), (MOST_BLOCKS // 10, True), (MOST_BLOCKS // 10 + 1, False)]
)
def test_blocks_of_large_plans_are_not_told_one_by_one(targets: int, are_kept: bool) -> None:
    assert keeps_block_times(targets, 10) is are_kept
