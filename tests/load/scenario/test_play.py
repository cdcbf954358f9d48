"""Scenarios under virtual time: what came of them, and that it is the same every time."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from livescale.load.scenario.play import PlayOptions, Progress, play
from livescale.load.scenario.requests import draw_requests
from livescale.load.scenario.result import Question, SimulationResult
from livescale.load.scenario.system import ScenarioSystem
from livescale.services.cli.status_view import Status
from livescale.services.cli.why import Why
from tests.load.scenario.scenarios import SMALL, played, read, write


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> SimulationResult:
    return played(read(tmp_path_factory.mktemp("once")))[0]


def test_requests_are_answered_while_the_model_is_scaled_and_faults_happen(once: SimulationResult) -> None:
    (chat,) = once.models
    assert (chat.requests, chat.failed, chat.unfinished) == (len(once.run.requests), 0, 0)
    assert chat.requests > 30
    assert chat.ttft.p50 is not None
    assert chat.ttft.p99 is not None
    assert 0.01 < chat.ttft.p50 < chat.ttft.p99 < 3
    assert [one.action for one in once.scales if one.state == "done"][:2] == ["out", "out"]
    # 16 GB take 0.32 s over 400 Gbps.
    assert once.scales[0].seconds == pytest.approx(0.32, rel=0.3)
    assert [(each.what, each.befell) for each in once.faults if each.what != "delay"] == [
        ("freeze", ["planner-0"]),
        ("kill", ["worker-2"]),
    ]
    assert once.used_seconds < 3 * once.ended_at
    assert not once.crashes


def test_a_run_is_the_same_with_messages_encoded_or_not_and_with_questions(
    once: SimulationResult, tmp_path: Path
) -> None:
    asked = PlayOptions(questions=[Question(2.0), Question(4.0, "chat"), Question(once.ended_at + 9.0)])
    again, (status, why, late) = played(read(tmp_path), wire=True, options=asked)
    assert again.digest == once.digest
    assert again.events == once.events
    assert isinstance(status.found, Status)
    assert {row.id for row in status.found.workers} == {"worker-0", "worker-1", "worker-2"}
    assert isinstance(late.found, Status)
    assert isinstance(why.found, Why)
    assert {decision.action for decision in why.found.decisions} >= {"out"}


def test_a_run_is_the_same_in_a_process_that_hashes_otherwise(once: SimulationResult, tmp_path: Path) -> None:
    code = f"from tests.load.scenario.scenarios import digest; print(digest({str(write(tmp_path))!r}))"
    environment = {**os.environ, "PYTHONHASHSEED": "7" if os.environ.get("PYTHONHASHSEED") != "7" else "8"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split()[-1] == once.digest


def test_another_seed_is_another_run_with_other_requests(once: SimulationResult, tmp_path: Path) -> None:
    checked = read(tmp_path)
    assert played(checked, seed=1, options=PlayOptions(until=0.5))[0].digest != once.digest
    one, other = (draw_requests(ScenarioSystem(checked, seed, wire=False)) for seed in (0, 1))
    assert one != other


def test_with_other_delays_the_same_requests_come_to_another_run(once: SimulationResult, tmp_path: Path) -> None:
    system = ScenarioSystem(read(tmp_path), 0, wire=False)
    other = system.with_delays(1)
    assert draw_requests(other) == draw_requests(system)
    assert other.faults == system.faults
    assert play(other, PlayOptions())[0].digest != once.digest


def test_a_run_may_end_before_its_requests_do(tmp_path: Path) -> None:
    told = list[Progress]()
    log = io.BytesIO()
    result, _ = played(read(tmp_path), options=PlayOptions(until=1.5, log=log, tell=told.append))
    (chat,) = result.models
    assert result.ended_at == pytest.approx(1.5)
    assert chat.unfinished > 0
    assert chat.requests == len(result.run.requests) + chat.unfinished
    assert [round(each.at, 3) for each in told] == [0.5, 1.0, 1.5][: len(told)]
    assert len(log.getvalue().splitlines()) == result.events


def test_models_have_figures_of_their_own_and_what_comes_in_the_warm_up_does_not_count(tmp_path: Path) -> None:
    text = """\
topology: lambdascale-1
seconds: 3
warm-up: 1
models: [{name: a, path: 7b}, {name: b, path: 8b}]
arrivals:
  - {model: a, rate: 4, prompt-tokens: 50, output-tokens: 3}
  - {model: b, rate: 8, prompt-tokens: 50, output-tokens: 3}
settings: {workers: 2, engine-profile: llama2-7b-a100}
"""
    checked = read(tmp_path, text)
    result, _ = played(checked)
    due = [one for one in draw_requests(ScenarioSystem(checked, 0, wire=False)) if one.arrival.at >= 1]
    counts = {model: sum(one.model == model for one in due) for model in ("a", "b")}
    assert {one.model: one.requests for one in result.models} == {**counts, "all models": len(due)}


def test_requests_of_a_trace_are_those_of_its_window_within_the_seconds(tmp_path: Path) -> None:
    rows = "".join(f"{at},600,{at + 1}\n" for at in range(100))
    (tmp_path / "trace.csv").write_text(f"arrival_s,prompt,output\n{rows}")
    arrivals = "arrivals: [{trace: trace.csv, window: '90:'}]\n"
    text = SMALL[: SMALL.index("arrivals:")] + arrivals + SMALL[SMALL.index("settings:") :]
    due = draw_requests(ScenarioSystem(read(tmp_path, text), 0, wire=False))
    assert [(one.arrival.at, one.arrival.output_tokens) for one in due] == [(at, 91 + at) for at in range(5)]
