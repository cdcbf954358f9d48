"""Decisions and scales in words."""

import json
from typing import Any

from msgspec.structs import replace

from livescale.services.cli.status_view import scaling
from livescale.services.cli.why import explain, tell_pipelines, tell_times
from livescale.shared.messages.registry import Incident
from livescale.shared.messages.scaling import (
    Action,
    Decision,
    Phase,
    PipelineRecord,
    RoleMove,
    ScaleRecord,
)
from livescale.shared.messages.transfers import Flow, Plan, PlannedInstance, PlannedPipeline
from tests.cli.answers import Answers, run
from tests.nats_server import NatsServer

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

PLANNED = [PlannedPipeline(members=["w-1", "w-2"], predicted=0.5), PlannedPipeline(members=["w-3", "w-4"])]
RUN = PipelineRecord(
    id="scale-1-0",
    stages=["w-1 0-1", "w-2 2-3"],
    ready_at=101.6,
    running_at=101.65,
    first_token_at=101.9,
    switching_at=102.5,
    ended_at=103.0,
    reason="each of them is whole",
)


def decision(id: str, action: Action = "hold", at: float = 100.0, **more: Any) -> Decision:
    values: dict[str, Any] = {"current": 1, "target": 2, "rule": "above hi", "reason": "queue grows", "by": "monitor"}
    return Decision(id=id, model="tiny", at=at, action=action, **(values | more))


def record(of: Decision) -> ScaleRecord:
    plan = Plan(
        id="scale-1",
        model="tiny",
        version="v",
        instances=[PlannedInstance(id="i-2", ranks=["worker-1"])],
        flows=[
            Flow(sender="worker-0", receiver="worker-1", ticket=1),
            Flow(sender="worker-1", receiver="worker-2", ticket=2),
        ],
        size_bytes=2_500_000,
        reasons=["worker-0 sends nothing else"],
    )
    phases = [Phase(name="planned", at=100.012), Phase(name="whole", at=100.25, node="worker-1")]
    return ScaleRecord(id="scale-1", decision=of, state="done", plan=plan, phases=phases, outcome="1 instance serves")


def text(decisions: list[Decision], scales: list[ScaleRecord], **more: Any) -> str:
    return "\n".join(explain("tiny", decisions, scales, **more))


def test_a_scale_is_told_from_its_decision_to_its_outcome() -> None:
    out = decision("d-1", "out", inputs={"waiting_tokens": 512.0, "tokens_per_second": None})
    told = text([out], [record(out)], verbose=True)
    assert "out 1 -> 2, by monitor" in told
    assert "above hi: queue grows" in told
    assert "from tokens_per_second unknown, waiting_tokens 512" in told
    assert "scale-1 done: 1 instance serves" in told
    assert "i-2 on worker-1" in told
    assert "2.5 MB along worker-0 -> worker-1 -> worker-2" in told
    assert "because worker-0 sends nothing else" in told
    assert "+12.0 ms planned" in told
    assert "+250.0 ms whole at worker-1" in told


def test_predicted_and_measured_times_are_told_by_target() -> None:
    out = decision("d-1", "out")
    told = record(out)
    assert told.plan is not None
    plan = replace(
        told.plan,
        instances=[PlannedInstance(id=f"i-{index}", ranks=[f"worker-{index}"]) for index in (1, 2)],
        predicted={"worker-1": 0.2, "worker-2": 0.25},
    )
    phases = [Phase(name="commanded", at=100.05), Phase(name="whole", at=100.26, node="worker-1")]
    lines = text([out], [replace(told, plan=plan, phases=phases)])
    assert "worker-1 whole after 0.210 s, 0.200 s predicted: 1.05x" in lines
    assert "worker-2 not whole, 0.250 s predicted" in lines
    assert "no times are predicted" not in lines


def test_where_nothing_was_predicted_that_is_said() -> None:
    told = text([decision("d-1", "out")], [record(decision("d-1", "out"))])
    assert "worker-1 not whole, nothing predicted" in told
    assert "no times are predicted" in told


def test_holds_in_a_row_are_told_once_whatever_they_alternate_between() -> None:
    holds = [
        decision(f"d-{index}", at=100.0 + index, rule=("idle", "within")[index % 2], inputs={"queue": float(index)})
        for index in range(5)
    ]
    told = text(holds, [])
    assert told.count("hold at 1") == 1
    assert ": 5 decisions, by the rules idle (3), within (2)" in told
    assert "last idle: queue grows" in told
    assert "queue 4" not in told
    assert "queue 4" in text(holds, [], verbose=True)


def test_holds_before_and_after_a_scale_are_told_apart() -> None:
    decisions = [decision("d-1"), decision("d-2", "out", at=101.0), decision("d-3", at=102.0)]
    assert text(decisions, []).count("hold at 1") == 2


def test_as_many_are_told_as_are_asked_for_and_a_row_of_holds_is_one() -> None:
    scales = [decision(f"s-{index}", "out", at=10.0 * index) for index in range(3)]
    holds = [decision(f"h-{index}", at=25.0 + index) for index in range(9)]
    told = text([*scales, *holds], [], limit=2)
    assert (told.count("out 1 -> 2"), told.count("hold at 1")) == (1, 1)


def test_what_an_operator_ordered_is_told_among_the_monitors_decisions() -> None:
    ordered = decision("d-9", "out", at=101.0, by="operator", rule="by hand")
    told = text([decision("d-1", at=100.0), decision("d-2", at=102.0)], [record(ordered)])
    assert told.index("by monitor") < told.index("by operator") < told.rindex("by monitor")


def test_what_befell_processes_is_told_among_decisions_since_the_first_of_them() -> None:
    moments = [Incident(at=at, kind="death", who=f"worker-{at:.0f}", text="declared dead") for at in (50, 101, 103)]
    decisions = [decision("d-1", at=100.0), decision("d-2", "out", at=102.0)]
    told = "\n".join(explain("tiny", decisions, [], None, moments))
    assert "worker-50" not in told
    assert told.index("hold") < told.index("worker-101: declared dead") < told.index("out 1 -> 2")
    assert told.index("out 1 -> 2") < told.index("worker-103")


def test_nothing_decided_is_said() -> None:
    assert "nothing was decided yet" in text([], [])


def test_a_model_that_could_not_be_read_says_why_last() -> None:
    *_, last = explain("tiny", [decision("d-1")], [], "Input/output error")
    assert last.startswith("tiny could not be read: Input/output error")


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


def test_the_blocks_that_came_to_a_target_that_still_loads_are_shown() -> None:
    assert told(RECORD)[2:] == [
        "w-2 not whole, 0.500 s predicted",
        "  1 block after 0.210 for 0.200 s; farthest off is block 0: 0.210 for 0.200 s, 1.05x",
    ]


def test_before_anybody_sends_only_the_prediction_is_told() -> None:
    assert told(replace(RECORD, phases=[])) == ["w-1 not whole, 0.400 s predicted", "w-2 not whole, 0.500 s predicted"]


def test_of_targets_that_had_kept_the_parameters_no_times_are_told() -> None:
    kept = replace(RECORD, plan=replace(PLAN, predicted={}, predicted_blocks={}, parked=["w-1", "w-2"]), arrived={})
    assert told(replace(kept, phases=[Phase(name="whole", at=101.0, node="w-1", detail="nothing")])) == [
        "w-1 had kept the parameters: nothing was sent",
        "w-2 had kept the parameters: nothing was sent",
    ]


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
    assert told(unknown)[-1].startswith("no times are predicted")


def told_of_pipelines(record: ScaleRecord, planned: list[PlannedPipeline], *pipelines: PipelineRecord) -> list[str]:
    return list(tell_pipelines(replace(record, pipelines=list(pipelines)), replace(PLAN, pipelines=planned)))


def test_a_pipeline_is_told_with_its_stages_beside_when_it_should_have_been_ready() -> None:
    assert told_of_pipelines(RECORD, PLANNED[:1], RUN) == [
        "pipeline of w-1 0-1, w-2 2-3: ready after 0.600 s, 0.500 s predicted: 1.20x",
        "  it ran from 0.650 s; first token at 0.900 s; each took up its part from 1.500 s; "
        "over at 2.000 s: each of them is whole",
    ]


def test_how_each_got_kv_of_its_part_is_told_with_the_reason() -> None:
    ways = {"w-2": "computed again: a token takes 9 us to be moved, 3 us to be computed", "w-1": "moved: move is set"}
    assert told_of_pipelines(RECORD, PLANNED[:1], replace(RUN, kv_ways=ways))[2:] == [
        "  KV for w-1 was moved: move is set",
        "  KV for w-2 was computed again: a token takes 9 us to be moved, 3 us to be computed",
    ]


def test_one_that_came_to_nothing_says_why() -> None:
    given_up = PipelineRecord(id="scale-1-0", ended_at=102.0, reason="w-1 is whole already")
    assert told_of_pipelines(RECORD, PLANNED, given_up, PipelineRecord(id="scale-1-1")) == [
        "pipeline of w-1, w-2: not ready, 0.500 s predicted",
        "  given up at 1.000 s: w-1 is whole already",
        "pipeline of w-3, w-4: not ready, nothing predicted",
    ]


def test_a_plan_without_any_says_nothing() -> None:
    assert told_of_pipelines(RECORD, []) == []


async def test_why_tells_in_words_and_in_json(server: NatsServer, answers: Answers) -> None:
    assert "by operator" in (await run(server, "why", "tiny")).output
    found = json.loads((await run(server, "why", "tiny", "--json")).output)
    assert found["scales"][0]["id"] == "scale-1"
    assert found["decisions"] == []


async def test_why_refuses_a_model_that_nobody_knows(server: NatsServer, answers: Answers) -> None:
    result = await run(server, "why", "tinny")
    assert result.exit_code == 1
    assert result.output == "Error: model 'tinny' is not registered; registered are: tiny\n"


def test_roles_are_told_with_their_reasons() -> None:
    made = decision("d-1", "switch", rule="decode", target=1, roles={"decode": 2, "prefill": 1})
    move = RoleMove(worker="worker-1", instance="i-1", epoch=1, role="decode", reason="prefill -> decode: it is idle")
    phases = [Phase(name="switched", at=100.001, node="worker-1", detail="prefill -> decode")]
    told = text([made], [ScaleRecord(id="scale-1", decision=made, state="done", moves=[move], phases=phases)])
    assert "switch 1 -> 1 (1 prefill, 2 decode), by monitor" in told
    assert "i-1 on worker-1: prefill -> decode: it is idle" in told
    assert "+1.0 ms switched at worker-1: prefill -> decode" in told
    assert scaling(made) == "switch to 1 (1 prefill, 2 decode): queue grows"
