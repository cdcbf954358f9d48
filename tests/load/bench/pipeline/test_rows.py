"""`livescale bench pipeline`: what it says of runs. All of it is run by hand."""

import pytest
from msgspec.structs import replace

from livescale.load.bench.pipeline.page import render_pipeline
from livescale.load.bench.pipeline.rows import PipelineRun, prefill_seconds
from livescale.load.bench.samples import BenchFailed
from livescale.shared.messages.scaling import PipelineRecord
from livescale.shared.runtime.settings import SwitchKv
from tests.load.bench.bench_output import CONDITIONS
from tests.load.bench.pipeline.runs import FORMED, LATENCY, PLAN, RUNS, run, said, stream


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


def test_from_two_sources_pipelines_form_in_every_run() -> None:
    case = "k = 2: runs in which all pipelines formed"
    kept = said([*RUNS, PipelineRun("pipeline", 2, RUNS[3].scale, RUNS[3].records, "move")])[case]
    assert (kept.value, kept.against, kept.ok) == (2, 2, True)
    assert said([*RUNS, run("pipeline", 2, 2.2)])[case].ok is False
    assert said(RUNS)["k = 1: runs in which all pipelines formed"].ok is None


def test_from_one_source_it_is_told_what_a_pipeline_could_have_gained() -> None:
    # Between them they have all at 2.1 s, and the first is whole at 4 s; its token comes at 5 s.
    gain = said(RUNS)["k = 1: most that a pipeline could have gained"]
    assert (gain.value, gain.against, gain.bar, gain.ok) == (pytest.approx(1.9), pytest.approx(5.0), 0.05, False)
    assert run("pipeline", 1, 5.0).window == pytest.approx(1.9)
    formed = [*RUNS[:1], run("pipeline", 1, 2.2, FORMED), *RUNS[2:]]
    assert "k = 1: most that a pipeline could have gained" not in said(formed)


def test_a_source_that_was_left_out_is_reported() -> None:
    reasons = ["2 sub-groups", "not from a (NIC out 6 % busy)"]
    scale = replace(RUNS[1].scale, plan=replace(PLAN, reasons=reasons))
    assert PipelineRun("pipeline", 2, scale, RUNS[1].records).left_out == reasons[1:]


def test_why_there_was_no_pipeline_is_told() -> None:
    unformed = PipelineRecord(id="scale-1-1", ended_at=104.0, reason="b is whole already")
    assert run("pipeline", 1, 5.0, FORMED, unformed).unformed == ["scale-1-1: b is whole already"]


def test_pauses_are_told_of_each_way_that_kv_took() -> None:
    ways: tuple[SwitchKv, ...] = ("move", "recompute")
    forced = [PipelineRun("pipeline", 2, RUNS[3].scale, RUNS[3].records[index:], way) for index, way in enumerate(ways)]
    found = said([*RUNS, *forced])
    pauses = [found[f"k = 2: longest pause as pipelines end{way}"] for way in ("", ", KV moved", ", KV computed again")]
    assert [pause.value for pause in pauses] == [pytest.approx(8.0)] * 3
    assert found["k = 2: pipelines formed"].value == 1
    assert render_pipeline([*RUNS, *forced], list(found.values()), 1, CONDITIONS).count("<svg") == 3


def test_a_pause_counts_from_when_workers_take_up_their_shares() -> None:
    scale = replace(RUNS[3].scale, pipelines=[replace(FORMED, switching_at=101.5, ended_at=101.6)])
    records = [stream(0, 100.0, 101.4), stream(1, 100.5, 101.5, 101.9), stream(2, 103.2, 105.0)]
    assert PipelineRun("pipeline", 2, scale, records).longest_pause == pytest.approx(1.0)


def test_a_scale_of_which_nothing_was_predicted_measures_nothing() -> None:
    bare = replace(RUNS[1].scale, plan=replace(PLAN, pipelines=[]))
    with pytest.raises(BenchFailed, match="nothing predicted"):
        said([RUNS[0], PipelineRun("pipeline", 1, bare, RUNS[1].records)])
