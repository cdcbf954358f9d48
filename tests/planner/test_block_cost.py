"""What a block costs is measured by plans that were carried out, and decides how many blocks the next one has."""

import pytest
from msgspec.structs import replace

from livescale.services.planner.block_cost import FIRST_SECONDS, BlockCost
from livescale.shared.messages.scaling import Phase, ScaleRecord
from livescale.shared.messages.transfers import Flow, Plan, PlannedInstance
from tests.planner.made import decision


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
