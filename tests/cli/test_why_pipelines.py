from msgspec.structs import replace

from livescale.services.cli.why_pipelines import tell_pipelines
from livescale.shared.messages.scaling import PipelineRecord, ScaleRecord
from livescale.shared.messages.transfers import PlannedPipeline
from tests.cli.test_why_times import PLAN, RECORD

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


def told(record: ScaleRecord, planned: list[PlannedPipeline], *pipelines: PipelineRecord) -> list[str]:
    return list(tell_pipelines(replace(record, pipelines=list(pipelines)), replace(PLAN, pipelines=planned)))


def test_a_pipeline_is_told_with_its_stages_beside_when_it_should_have_been_ready() -> None:
    assert told(RECORD, PLANNED[:1], RUN) == [
        "pipeline of w-1 0-1, w-2 2-3: ready after 0.600 s, 0.500 s predicted: 1.20x",
        "  it ran from 0.650 s; first token at 0.900 s; each took up its part from 1.500 s; "
        "over at 2.000 s: each of them is whole",
    ]


def test_how_each_got_kv_of_its_part_is_told_with_the_reason() -> None:
    ways = {"w-2": "computed again: a token takes 9 us to be moved, 3 us to be computed", "w-1": "moved: move is set"}
    assert told(RECORD, PLANNED[:1], replace(RUN, kv_ways=ways))[2:] == [
        "  KV for w-1 was moved: move is set",
        "  KV for w-2 was computed again: a token takes 9 us to be moved, 3 us to be computed",
    ]


def test_one_that_came_to_nothing_says_why() -> None:
    given_up = PipelineRecord(id="scale-1-0", ended_at=102.0, reason="w-1 is whole already")
    assert told(RECORD, PLANNED, given_up, PipelineRecord(id="scale-1-1")) == [
        "pipeline of w-1, w-2: not ready, 0.500 s predicted",
        "  given up at 1.000 s: w-1 is whole already",
        "pipeline of w-3, w-4: not ready, nothing predicted",
    ]


def test_a_plan_without_any_says_nothing() -> None:
    assert told(RECORD, []) == []
