"""Predicted and measured times in words."""

from msgspec.structs import replace

from livescale.services.cli.why_times import tell_times
from livescale.shared.messages.scaling import Decision, Phase, ScaleRecord
from livescale.shared.messages.transfers import Plan, PlannedInstance

DECISION = Decision(
    id="d", model="m", at=100.0, action="out", current=1, target=3, rule="r", reason="why", by="operator"
)
PLAN = Plan(
    id="scale-1",
    model="m",
    version="v",
    instances=[PlannedInstance(id="i-1", ranks=["w-1"]), PlannedInstance(id="i-2", ranks=["w-2"])],
    flows=[],
    size_bytes=4,
    predicted={"w-1": 0.4, "w-2": 0.5},
    predicted_blocks={
        "w-1": [0.1, 0.2, 0.3, 0.4],
        "w-2": [0.2, 0.3, 0.4, 0.5],
    },
)
PHASES = [Phase(name="commanded", at=101.0), Phase(name="whole", at=101.5, node="w-1")]
ARRIVED: dict[str, list[float | None]] = {
    "w-1": [101.1, 101.2, 101.45, 101.5],
    "w-2": [101.21, None, None, None],
}
RECORD = ScaleRecord(id="scale-1", decision=DECISION, state="loading", plan=PLAN, phases=PHASES, arrived=ARRIVED)


def told(record: ScaleRecord) -> list[str]:
    assert record.plan is not None
    return list(tell_times(record, record.plan))


def test_a_target_and_its_blocks_are_told_beside_what_was_predicted() -> None:
    first, blocks, *_ = told(RECORD)
    assert first == "w-1 whole after 0.500 s, 0.400 s predicted: 1.25x"
    assert blocks == (
        "  4 blocks; first, median, last after 0.100 for 0.100, 0.450 for 0.300, 0.500 for 0.400 s; "
        "farthest off is block 2: 0.450 for 0.300 s, 1.50x"
    )


def test_of_a_target_that_still_loads_the_blocks_that_came_are_told() -> None:
    assert told(RECORD)[2:] == [
        "w-2 not whole, 0.500 s predicted",
        "  1 block after 0.210 for 0.200 s; farthest off is block 0: 0.210 for 0.200 s, 1.05x",
    ]


def test_before_anybody_sends_only_the_prediction_is_told() -> None:
    assert told(replace(RECORD, phases=[])) == ["w-1 not whole, 0.400 s predicted", "w-2 not whole, 0.500 s predicted"]


def test_times_of_a_plan_that_was_made_anew_say_so() -> None:
    anew = [
        Phase(name="replanned", at=101.25, node="w-1", detail="s is gone; now from t"),
        Phase(name="replanned", at=101.3, node="w-2", detail="t is gone; now from u"),
    ]
    assert told(replace(RECORD, phases=[*PHASES, *anew]))[-1] == (
        "times were predicted anew 2 times, as the plan was made anew, 0.300 s after the first send: "
        "t is gone; now from u"
    )
    assert "anew once, as the plan was made anew, 0.250 s" in told(replace(RECORD, phases=[*PHASES, anew[0]]))[-1]


def test_where_blocks_are_too_many_targets_alone_are_told() -> None:
    large = replace(RECORD, plan=replace(PLAN, predicted_blocks={}), arrived={})
    assert told(large) == ["w-1 whole after 0.500 s, 0.400 s predicted: 1.25x", "w-2 not whole, 0.500 s predicted"]


def test_where_rates_are_not_known_nothing_was_predicted() -> None:
    unknown = replace(RECORD, plan=replace(PLAN, predicted={}, predicted_blocks={}))
    assert told(unknown)[0] == "w-1 whole after 0.500 s, nothing predicted"
    assert told(unknown)[-1].startswith("nothing is predicted without --link-rate or --topology")
