"""Predicted and measured times of a scale, and how they change when its plan is made anew."""

import pytest
from msgspec.structs import replace

from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.times import FIRST_SECONDS, MOST_BLOCKS, BlockCost, keeps_block_times, message_times
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.scaling import Phase, ScaleRecord
from livescale.shared.messages.transfers import Flow, Plan, PlannedInstance
from tests.control.fakes import BLOCKS
from tests.planner.samples import acknowledge, block_ready, chain, decision, loading, member, scale_out

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


def carried_out(cost: float, assumed: float = 0.005, once: float = 0.0) -> ScaleRecord:
    """Four blocks in four steps to `a`, which took `cost` each besides their 0.1 s, and something `once`."""
    plan = Plan(
        id="scale-1",
        model="m",
        version="v",
        instances=[PlannedInstance(id="i-a", ranks=["a"])],
        flows=[
            Flow(sender="s", receiver="a", ticket=1, blocks=[0, 2], steps=[0, 2]),
            Flow(sender="b", receiver="a", ticket=2, blocks=[1, 3], steps=[1, 3]),
        ],
        size_bytes=4,
        predicted_blocks={"a": [(block + 1) * (0.1 + assumed) for block in range(4)]},
        block_seconds=assumed,
    )
    arrived: list[float | None] = [50.0 + once + (block + 1) * (0.1 + cost) for block in range(4)]
    return ScaleRecord(id="scale-1", decision=decision(), state="done", plan=plan, arrived={"a": arrived})


def learned(*records: ScaleRecord) -> BlockCost:
    cost = BlockCost()
    for record in records:
        cost.learn(record)
    return cost


def test_before_anything_was_measured_a_cost_is_assumed_and_said_to_be() -> None:
    assert learned().seconds == FIRST_SECONDS
    assert learned().reason == "a block costs 5 ms besides its bytes: assumed, for nothing was measured yet"


@pytest.mark.parametrize("cost", [0.0, 0.002, 0.03])
@pytest.mark.parametrize("assumed", [0.0, 0.005])
def test_the_cost_is_what_each_step_took_besides_its_bytes(cost: float, assumed: float) -> None:
    assert learned(carried_out(cost, assumed)).seconds == pytest.approx(cost)


def test_what_comes_once_is_no_part_of_it() -> None:
    assert learned(carried_out(0.002, once=3.0)).seconds == pytest.approx(0.002)


def test_it_moves_with_every_plan() -> None:
    cost = learned(carried_out(0.01), carried_out(0.02))
    assert 0.01 < cost.seconds < 0.02
    assert cost.reason.endswith("measured in 2 plans")


def test_faster_than_the_bytes_is_no_negative_cost() -> None:
    assert learned(carried_out(-0.05)).seconds == 0.0


def test_a_plan_that_failed_or_was_made_anew_or_has_no_schedule_or_no_times_says_nothing() -> None:
    record = carried_out(0.03)
    assert record.plan is not None
    chain = replace(record.plan, flows=[Flow(sender="s", receiver="a", ticket=1)])
    useless = [
        replace(record, state="failed"),
        replace(record, phases=[Phase(name="replanned", at=1.0, node="a")]),
        replace(record, plan=chain),
        replace(record, plan=None),
        replace(record, plan=replace(record.plan, predicted_blocks={})),
        replace(record, arrived={"a": [50.1, 50.2, None, None]}),
    ]
    assert learned(*useless).seconds == FIRST_SECONDS
