"""`livescale bench pipeline`: what it says of runs. All of it is run by hand."""

import re

import pytest
from msgspec.structs import replace

from livescale.load.bench.fleet import BenchFailed
from livescale.load.bench.live_stage import Watch
from livescale.load.bench.multicast import flat
from livescale.load.bench.pipeline import forming_runs
from livescale.load.bench.pipeline_page import rate_at, render_pipeline
from livescale.load.bench.pipeline_runs import Run, prefill_seconds, rows
from livescale.load.bench.pipeline_stage import TRAFFIC_LEFT
from livescale.load.bench.record import Record
from livescale.load.records import RequestRecord
from livescale.services.planner.plans.choose import make_plan
from livescale.services.planner.plans.network import ServingFlow
from livescale.services.planner.plans.traffic import BUSY_SHARE
from livescale.shared.messages.membership import PeerTraffic, WorkerReport
from livescale.shared.messages.scaling import Decision, Phase, PipelineRecord, ScaleRecord
from livescale.shared.messages.transfers import LiveMode, Plan, PlannedPipeline
from livescale.shared.model.latency import Latency
from livescale.shared.runtime.settings import SwitchKv
from tests.load.bench.printed import CONDITIONS

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


def test_from_two_sources_pipelines_form_in_every_run() -> None:
    case = "k = 2: runs in which all pipelines formed"
    kept = said([*RUNS, Run("pipeline", 2, RUNS[3].scale, RUNS[3].records, "move")])[case]
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


def test_what_the_run_before_moved_is_seen_until_it_is_forgotten() -> None:
    watch = Watch()
    assert watch.traffic() == 0.0
    peers = [PeerTraffic(peer=b"one", sent=3e5, received=1e5), PeerTraffic(peer=b"two", sent=0.0, received=2e5)]
    quiet = WorkerReport(id="a", epoch=1, state="serving", arena_bytes=1)
    watch.hear(quiet)
    watch.hear(replace(quiet, id="b", traffic=peers))
    assert watch.traffic() == pytest.approx(6e5)
    watch.hear(replace(quiet, id="b", traffic=[]))
    assert watch.traffic() == 0.0


@pytest.mark.parametrize(("share", "pipelines"), [(TRAFFIC_LEFT, 2), (1.02 * BUSY_SHARE, 1)])
def test_a_source_that_has_moved_too_much_of_late_is_left_out_and_two_pipelines_with_it(
    share: float, pipelines: int
) -> None:
    _, multicast = flat(6, 2, 8e6, [8_000_000] * 6)
    moved = ServingFlow(multicast.sources[0].node.id, "out", share * 8e6)
    plan = make_plan("binomial", replace(multicast, serving=(moved,)))
    assert len(plan.pipelines) == pipelines
    assert any(reason.startswith("not from") for reason in plan.reasons) is (pipelines == 1)


def test_who_was_left_out_as_a_source_is_told() -> None:
    reasons = ["2 sub-groups", "not from a (NIC out 6 % busy)"]
    scale = replace(RUNS[1].scale, plan=replace(PLAN, reasons=reasons))
    assert Run("pipeline", 2, scale, RUNS[1].records).left_out == reasons[1:]


@pytest.mark.parametrize(("repeats", "more"), [(1, 7), (3, 1), (4, 0)])
def test_there_are_ten_runs_that_tell_whether_pipelines_form(repeats: int, more: int) -> None:
    assert forming_runs(repeats) == more


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
    assert render_pipeline([*RUNS, *forced], list(found.values()), 1, CONDITIONS).count("<svg") == 3


def test_a_pause_counts_from_when_workers_take_up_their_shares() -> None:
    scale = replace(RUNS[3].scale, pipelines=[replace(FORMED, switching_at=101.5, ended_at=101.6)])
    records = [stream(0, 100.0, 101.4), stream(1, 100.5, 101.5, 101.9), stream(2, 103.2, 105.0)]
    assert Run("pipeline", 2, scale, records).longest_pause == pytest.approx(1.0)


def test_the_page_says_what_was_missed_and_draws_each_number_of_sources() -> None:
    page = render_pipeline(RUNS, list(said(RUNS).values()), 1, CONDITIONS)
    assert re.search("Missed: .*k = 1: first token", page)
    assert page.count("<svg") == 3
    assert {"off, k = 1", "pipeline, k = 2"} <= set(re.findall(r">([^<]*)<", page))


def test_a_rate_is_of_the_second_around_a_moment() -> None:
    assert [rate_at([0.4, 1.0, 1.5, 1.6], at) for at in (0.0, 1.0, 1.2, 9.0)] == [1.0, 1.0, 3.0, 0.0]


def test_a_scale_of_which_nothing_was_predicted_measures_nothing() -> None:
    bare = replace(RUNS[1].scale, plan=replace(PLAN, pipelines=[]))
    with pytest.raises(BenchFailed, match="nothing predicted"):
        said([RUNS[0], Run("pipeline", 1, bare, RUNS[1].records)])
