"""`livescale bench pipeline`: what it says of runs. All of it is run by hand."""

import re

import pytest
from msgspec.structs import replace

from load.bench.fleet import BenchFailed
from load.bench.pipeline_page import rate_at, render_pipeline
from load.bench.pipeline_runs import Run, prefill_seconds, rows
from load.bench.record import Record
from load.records import RequestRecord
from shared.latency import Latency
from shared.messages.scaling import Decision, Phase, PipelineRecord, ScaleRecord
from shared.messages.transfers import LiveMode, Plan, PlannedPipeline
from shared.settings import SwitchKv

LATENCY = Latency(source="made up", prefill=(100.0, 1.0, 0.0), decode=(10.0, 0.0, 0.0))
DECISION = Decision(
    id="d", model="m", at=99.0, action="out", current=1, target=3, rule="r", reason="why", by="operator"
)
PLAN = Plan(
    id="scale-1",
    model="m",
    version="v",
    instances=[],
    flows=[],
    size_bytes=4,
    pipelines=[PlannedPipeline(members=["a", "b"], predicted=2.0)],
)
FORMED = PipelineRecord(id="scale-1-0", stages=["a 0-0", "b 1-1"], ready_at=102.1, running_at=102.2, ended_at=105.0)


def stream(index: int, *token_at: float) -> RequestRecord:
    return RequestRecord(
        index=index, due=0.0, sent=0.0, ended=token_at[-1], prompt_tokens=1, asked_tokens=1, token_at=list(token_at)
    )


def run(mode: LiveMode, sources: int, first_token: float, *pipelines: PipelineRecord) -> Run:
    phases = [
        Phase(name="commanded", at=100.0),
        Phase(name="first_token", at=100 + first_token, node="a"),
        Phase(name="whole", at=104.0, node="b"),
        Phase(name="whole", at=105.0, node="a"),
    ]
    arrived: dict[str, list[float | None]] = {"a": [102.1, 105.0], "b": [104.0, 102.0]}
    scale = ScaleRecord(
        id="scale-1", decision=DECISION, state="done", plan=PLAN, phases=phases, arrived=arrived, pipelines=[*pipelines]
    )
    records = [stream(0, 103.0, 104.5), stream(1, 104.0, 104.9, 105.6), stream(2, 101.0, 109.0, 109.1)]
    return Run(mode, sources, scale, records)


RUNS = [run("off", 1, 5.4), run("pipeline", 1, 5.0), run("off", 2, 5.4), run("pipeline", 2, 2.2, FORMED)]


def said(runs: list[Run]) -> dict[str, Record]:
    return {record.case: record for record in rows(runs, LATENCY, 2.0, 100, 3)}


def test_first_tokens_are_held_against_the_schedule_and_the_prefill_of_one_prompt() -> None:
    found = said(RUNS)
    assert prefill_seconds(LATENCY, 2.0, 1, 100) == pytest.approx(0.1)
    token = found["k = 2: first token"]
    assert (token.value, token.against, token.ok) == (pytest.approx(2.2), pytest.approx(2.1), True)
    assert found["k = 1: first token"].ok is False
    assert found["k = 2 before k = 1"].ok is True
    assert found["k = 2: first pipeline ready"].value == pytest.approx(2.1)


def test_what_ended_before_all_were_whole_is_counted_and_pauses_only_where_a_pipeline_ended() -> None:
    found = said(RUNS)
    assert (found["k = 2: finished while it loads"].value, found["k = 2: pipelines formed"].value) == (1, 1)
    pause = found["k = 2: longest pause as pipelines end"]
    assert (pause.value, pause.against) == (pytest.approx(8.0), pytest.approx(0.2))
    assert (pause.bar, pause.ok) == (1.0, False)
    assert "k = 1: longest pause as pipelines end" not in found


def test_why_there_was_no_pipeline_is_told() -> None:
    unformed = PipelineRecord(id="scale-1-1", ended_at=104.0, reason="b is whole already")
    assert run("pipeline", 1, 5.0, FORMED, unformed).unformed == ["scale-1-1: b is whole already"]


def test_pauses_are_told_of_each_way_that_kv_took() -> None:
    ways: tuple[SwitchKv, ...] = ("move", "recompute")
    forced = [Run("pipeline", 2, RUNS[3].scale, RUNS[3].records[index:], way) for index, way in enumerate(ways)]
    found = said([*RUNS, *forced])
    pauses = [found[f"k = 2: longest pause as pipelines end{way}"] for way in ("", ", KV moved", ", KV computed again")]
    assert [pause.value for pause in pauses] == [pytest.approx(8.0)] * 3
    assert found["k = 2: pipelines formed"].value == 1
    assert render_pipeline([*RUNS, *forced], list(found.values()), 1).count("<svg") == 3


def test_a_pause_counts_from_when_workers_take_up_their_shares() -> None:
    scale = replace(RUNS[3].scale, pipelines=[replace(FORMED, switching_at=101.5, ended_at=101.6)])
    records = [stream(0, 100.0, 101.4), stream(1, 100.5, 101.5, 101.9), stream(2, 103.2, 105.0)]
    assert Run("pipeline", 2, scale, records).longest_pause == pytest.approx(1.0)


def test_the_page_says_what_was_missed_and_draws_each_number_of_sources() -> None:
    page = render_pipeline(RUNS, list(said(RUNS).values()), 1)
    assert "Missed: k = 1: first token" in page
    assert page.count("<svg") == 3
    assert {"off, k = 1", "pipeline, k = 2"} <= set(re.findall(r">([^<]*)<", page))


def test_a_rate_is_of_the_second_around_a_moment() -> None:
    assert [rate_at([0.4, 1.0, 1.5, 1.6], at) for at in (0.0, 1.0, 1.2, 9.0)] == [1.0, 1.0, 3.0, 0.0]


def test_a_scale_of_which_nothing_was_predicted_measures_nothing() -> None:
    bare = replace(RUNS[1].scale, plan=replace(PLAN, pipelines=[]))
    with pytest.raises(BenchFailed, match="nothing predicted"):
        said([RUNS[0], Run("pipeline", 1, bare, RUNS[1].records)])
