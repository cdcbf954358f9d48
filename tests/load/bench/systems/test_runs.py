"""Runs are kept as soon as they end, and are not run again while scenario and code are the same."""

from pathlib import Path

import click
import pytest
from msgspec.structs import replace

from livescale.load.bench.systems import runs as module
from livescale.load.bench.systems.play import SystemRun
from livescale.load.bench.systems.runs import KeptRuns, run_all
from livescale.load.bench.systems.scenario import Scenario
from tests.load.bench.systems.examples import run, scenario

SCENARIOS = [scenario("+zigzag"), scenario("ideal")]


def made_up(one: Scenario) -> SystemRun:
    return replace(run(one.system), digest=one.digest())


def test_an_interrupted_comparison_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played, told = list[str](), list[str]()

    def interrupted(one: Scenario) -> SystemRun:
        if played:
            raise KeyboardInterrupt
        played.append(one.system)
        return made_up(one)

    monkeypatch.setattr(module, "play_one", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_all(SCENARIOS, KeptRuns(tmp_path), 1, told.append)
    monkeypatch.setattr(module, "play_one", made_up)
    assert [one.system for one in run_all(SCENARIOS, KeptRuns(tmp_path), 1, told.append)] == ["+zigzag", "ideal"]
    assert told[-2:] == ["1 of 2 runs were kept from before", "2 of 2: ideal, seed 0, in 1 s of CPU"]


def test_a_file_that_is_no_run_is_run_again(tmp_path: Path) -> None:
    kept = KeptRuns(tmp_path)
    kept.keep(run("a"))
    assert kept.find("a-0") == run("a")
    (tmp_path / "a-0.json").write_text("{}")
    assert kept.find("a-0") is None
    assert kept.find("b-0") is None


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(click.ClickException, match=r"--runs .*name another directory"):
        KeptRuns(tmp_path / "file" / "runs")
