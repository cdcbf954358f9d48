"""Figures of a run: percentiles, scales that ended or did not, counts; and questions that nobody may be there to
answer."""

import math
from pathlib import Path

import msgspec
import pytest

from livescale.load.bench.systems.play import AnsweredRequest
from livescale.load.scenario.play import PlayOptions
from livescale.load.scenario.result import (
    FaultFigures,
    ModelFigures,
    Question,
    ScaleFigures,
    Spread,
    show,
    tell_counts,
    tell_failures,
)
from livescale.load.simulate.faults import ClusterFault
from livescale.shared.messages.scaling import Decision, Phase, ScaleRecord
from tests.load.scenario.scenarios import SMALL, played, read

DECISION = Decision(
    id="d", model="m", at=110.0, action="out", current=1, target=2, rule="prefill", reason="why", by="monitor"
)


def test_the_gap_before_the_second_token_is_not_among_the_others() -> None:
    answered = [AnsweredRequest(0.0, 10, 0.5, [3.0, 0.1, 0.1]), AnsweredRequest(0.0, 10, 1.5, [])]
    figures = ModelFigures.of("m", answered, failed=2, unfinished=1)
    assert (figures.requests, figures.failed, figures.unfinished) == (5, 2, 1)
    assert (figures.ttft.p50, figures.tbt.p99, figures.second_gap.p50) == (1.0, 0.1, 3.0)
    assert str(Spread.of([])) == "- / - / -"


def test_a_scale_lasts_until_its_last_phase_and_not_until_a_request_uses_it() -> None:
    phases = [Phase(name=name, at=at) for name, at in (("decided", 110.0), ("serving", 111.5), ("first_token", 119.0))]
    done = ScaleFigures.of(ScaleRecord(id="s", decision=DECISION, state="done", phases=phases), begun=100.0)
    assert (done.at, done.seconds) == (10.0, 1.5)
    assert done.row() == ["10.000 s", "m", "out 1 -> 2", "prefill", "done", "1500 ms"]
    loading = ScaleFigures.of(ScaleRecord(id="s", decision=DECISION, state="loading", phases=phases[:1]), 100.0)
    assert loading.seconds is None


def test_counts_are_told_by_name() -> None:
    assert tell_counts(["kill", "lose", "kill"]) == "2 kill, 1 lose"
    assert tell_counts([]) == "none"
    assert tell_failures(["a: late", "b: lost: twice", "c: lost: twice"]) == "2 lost: twice; 1 late"


def test_a_fault_for_good_is_told_and_can_be_read_again() -> None:
    figures = FaultFigures.of(
        ClusterFault(at=1.0, what="kill", who="worker", seconds=math.inf), ["worker-0", "worker-1"]
    )
    assert figures.row() == ["1.000 s", "kill", "worker-0, worker-1", "good", ""]
    assert msgspec.json.decode(msgspec.json.encode(figures), type=FaultFigures) == figures


def test_a_registry_that_is_dead_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SMALL.replace("who: planner, seconds: 0.3", "who: nobody").replace(
        "{what: freeze, at: 1.2, who: nobody}", "{what: kill, at: 0.1, who: registry}"
    )
    _, (answer,) = played(read(tmp_path, text), options=PlayOptions(until=0.5, questions=[Question(0.3)]))
    show(answer)
    assert "livescale status at 0.3 s:\nnobody answered: no process listens" in capsys.readouterr().out
