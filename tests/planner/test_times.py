"""Predicted and measured times of a scale, and how they change when its plan is made anew."""

import pytest

from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.times import MOST_BLOCKS, are_told, told
from livescale.shared.messages.membership import LeaseChanged
from tests.control.fakes import BLOCKS
from tests.planner.made import acknowledge, block_ready, chain, loading, member, scale_out

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
    assert scale.delivery.times.missing("a") == [0, 1, 3]


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
    assert scale.plan.predicted_blocks == told(PREDICTED, BLOCKS)


def test_a_planner_that_takes_over_goes_on_with_what_the_last_one_knew() -> None:
    first, second = begun(), scale_out(["a", "b"], predicted=PREDICTED)
    first.on_block(block_ready("a", 0, at=12.0), 12.0)
    report = loading("a", blocks=1)
    second.take_over(first.record(), {"a": report, "b": loading("b", blocks=0)}, 14.0)
    assert second.record().arrived == {"a": [12.0, None, None, None]}
    second.delivery.expect({"a": {1: 1.0}}, 15.0)
    assert second.plan.predicted_blocks["a"][1] == 5.0


@pytest.mark.parametrize(("targets", "told"), [(10, True), (MOST_BLOCKS // 10, True), (MOST_BLOCKS // 10 + 1, False)])
def test_blocks_of_large_plans_are_not_told_one_by_one(targets: int, told: bool) -> None:
    assert are_told(targets, 10) is told
