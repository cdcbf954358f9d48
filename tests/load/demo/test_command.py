from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from livescale.load.demo.command import demo, find_checkpoint
from livescale.load.demo.outcome import make_outcome, print_outcome
from livescale.load.demo.plan import DemoLoad, MeasuredRates
from livescale.load.demo.run import DemoResult
from livescale.load.incidents import RunIncident
from livescale.load.records import Ask
from livescale.load.settings import DemoSettings
from livescale.load.trace import Arrival, Window
from tests.load import sample_run
from tests.load.sample_run import START

LOAD = DemoLoad(tuple(Arrival(float(at), 100, 10) for at in range(60)), 60.0, Window(15.0, 35.0))


def test_the_outcome_has_three_periods_and_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    model = sample_run.outcome()
    happened = DemoResult(
        load=LOAD,
        capacity=MeasuredRates(1000, 100),
        asks=[Ask(0, 0.0, [1], 8)],
        records=list(model.records),
        story=model.story,
        start=START,
        end=START + 62,
        again=[],
        incidents=[RunIncident(START + 30.0, "stall", "the machine stood still for 2.1 s", 2.1)],
    )
    outcome = make_outcome(DemoSettings(seed=4), happened, model.verdict, model.hardware)
    assert [(each.name, each.start - START, each.end - START) for each in outcome.periods] == [
        ("before", 0, 15),
        ("burst", 15, 35),
        ("after", 35, 60),
    ]
    assert outcome.settings["seed"] == "4"
    assert outcome.settings["one worker"] == "1000 prompt tokens/s, 100 output tokens/s"
    assert "trace" not in outcome.settings
    print_outcome(Console(width=120), outcome)
    printed = capsys.readouterr().out
    for text in (
        "TTFT p50",
        "burst",
        "worker-1",
        "4.20 s",
        "4.80 s",
        "Machine: AMD EPYC",
        "+30.0 s  the machine stood still for 2.1 s",
        "Every stream was complete",
    ):
        assert text in printed
    print_outcome(Console(width=80), sample_run.outcome(sample_run.live_scale()))
    printed = capsys.readouterr().out
    assert "After its full load, as others do, it would not have begun before 4.20 s." in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 80
    for text in ("1.00 s", "1.10 s", "4.20 s", "4.80 s", "worker-0: 2"):
        assert text in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "absent.csv"], "absent.csv: not a readable trace"),
        (["--window", "0:10"], "--window says how to replay a trace"),
        (["--length-scale", "0.5"], "--length-scale says how to replay a trace"),
        (["--duration", "0"], "--duration"),
        (["--report", "absent/report.html"], "--report absent/report.html: not a file in a directory that exists"),
        (["--dtype", "int8"], "--dtype"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(demo, arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_load_that_brought_no_instance_is_no_success() -> None:
    calm = sample_run.outcome([(-1.0, sample_run.report("worker-0", "serving"))])
    assert calm.verdict.good
    assert not calm.good
    assert "But no instance was scaled out" in calm.sentence()
    assert sample_run.outcome().good


def test_a_demo_that_cannot_be_carried_out_ends_with_2_and_says_why(tmp_path: Path) -> None:
    result = CliRunner().invoke(demo, ["--model", str(tmp_path), "--report", str(tmp_path / "report.html")])
    assert result.exit_code == 2
    assert "config.json" in result.stderr


def test_a_given_checkpoint_is_taken_and_none_is_made() -> None:
    assert find_checkpoint(DemoSettings(model="/some/where"), Console()) == Path("/some/where")
