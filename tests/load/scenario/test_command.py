"""The command: what it prints and writes, where two logs part, and what it refuses."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from livescale.load.scenario.command import Teller, simulate
from livescale.load.scenario.play import Progress
from livescale.load.scenario.result import SimulationResult
from livescale.services.cli.main import cli
from tests.load.scenario.scenarios import SMALL, write


def invoke(*words: str) -> Result:
    return CliRunner().invoke(simulate, words)


def test_a_scenario_is_run_and_told_in_all_forms(tmp_path: Path) -> None:
    page, output, log = tmp_path / "page.html", tmp_path / "out.json", tmp_path / "one.log"
    files = ("--report", str(page), "--json", str(output), "--log", str(log))
    asked = ("--status-at", "1.5", "--why", "chat", "--at", "2.5")
    result = invoke(str(write(tmp_path)), "--until", "3", *files, *asked)
    assert result.exit_code == 0, result.output
    found = msgspec.json.decode(output.read_bytes(), type=SimulationResult)
    for told in (f"{found.digest} of {found.events} events, seed 0", "GPU seconds", "1 freeze", "second token"):
        assert told in result.output
    assert "livescale status at 1.5 s:" in result.output
    assert "out 1 -> 2, by monitor" in result.output
    for told in (found.digest, "small, simulated", "Workers in use", "planner-0", "worker-2"):
        assert told in page.read_text()
    assert len(log.read_bytes().splitlines()) == found.events


def test_the_first_event_that_differs_is_told(tmp_path: Path) -> None:
    one, other, third = (tmp_path / name for name in ("one.log", "other.log", "third.log"))
    scenario = str(write(tmp_path))
    for log, seed in ((one, "0"), (other, "0"), (third, "1")):
        assert invoke(scenario, "--until", "0.2", "--log", str(log), "--seed", seed).exit_code == 0
    same = invoke("--compare", str(one), str(other))
    assert (same.exit_code, same.output) == (0, "the logs are the same\n")
    apart = invoke("--compare", str(one), str(third))
    assert apart.exit_code == 1
    number = next(
        n
        for n, (a, b) in enumerate(
            zip(*(each.read_text().splitlines() for each in (one, third)), strict=False), start=1
        )
        if a != b
    )
    assert f"event {number} is the first that differs" in apart.output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "no scenario: name a YAML file"),
        (("none.yaml",), "none.yaml: No such file or directory"),
        (("small.yaml", "--report", "no/such/page.html"), "no/such/page.html"),
        (("small.yaml", "--json", "no/such/out.json"), "--json no/such/out.json: not a file in a directory"),
        (("small.yaml", "--why", "chat"), "--why names a model and --at a second: give both"),
        (("small.yaml", "--why", "talk", "--at", "1"), "--why: there is no model 'talk' in the scenario; name one of"),
        (("small.yaml", "--until", "0"), "--until"),
        (("small.yaml", "--compare", "small.yaml", "small.yaml"), "--compare runs nothing: leave SCENARIO out"),
        (("small.yaml", "--until", "1", "--status-at", "2"), "--until ends the run at 1 s, and 2 s is asked about"),
        (("small.yaml", "--until", "1", "--against-live", "2"), "--until ends a simulation, and live runs go on"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    result = invoke(*words)
    assert result.exit_code != 0
    assert why in result.output


def test_every_option_may_be_given_by_the_environment(tmp_path: Path) -> None:
    environment = {"LIVESCALE_SIMULATE_SEED": "7", "LIVESCALE_SIMULATE_UNTIL": "0.2"}
    result = CliRunner().invoke(cli, ["simulate", str(write(tmp_path))], env=environment)
    assert result.exit_code == 0, result.output
    assert "seed 7" in result.output
    assert "simulated    0.2 s" in result.output


def test_a_bad_field_has_exit_status_2(tmp_path: Path) -> None:
    result = invoke(str(write(tmp_path, SMALL.replace("seconds: 5", "seconds: soon"))))
    assert result.exit_code == 2
    assert "small.yaml: seconds: Expected `float`, got `str`" in result.output


def test_a_trace_that_is_not_there_is_told_with_its_place(tmp_path: Path) -> None:
    arrivals = SMALL[SMALL.index("  - rate: 2") : SMALL.index("settings:")]
    result = invoke(str(write(tmp_path, SMALL.replace(arrivals, "  - trace: none.csv\n"))))
    assert result.exit_code == 2
    assert "small.yaml: arrivals[0]: " in " ".join(result.output.split())


def test_a_model_that_never_serves_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.load.scenario.play.START_SECONDS", 0.2)
    result = invoke(str(write(tmp_path)))
    assert result.exit_code == 2
    assert "models: their first instances did not all serve after 0.2 s; give hosts" in " ".join(result.output.split())


def test_progress_is_told_every_two_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    tell = Teller()
    for at in (10.0, 20.0, 30.0, 40.0):
        tell(Progress(at, 5, 4))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["20", "40"]
    assert "5 requests came, 4 of them ended; 10.0 times as fast as real time" in lines[0]


def test_a_log_is_kept_where_the_run_cannot_begin(tmp_path: Path) -> None:
    lost = SMALL.partition("  - rate: 2")[0] + "  - trace: none.csv\n"
    scenario, log = write(tmp_path, lost), tmp_path / "log"
    log.write_text("of an earlier run")
    result = invoke(str(scenario), "--log", str(log))
    assert (result.exit_code, log.read_text()) == (2, "of an earlier run")
    assert "none.csv" in result.stderr


@pytest.mark.parametrize("moment", ["nan", "inf"])
@pytest.mark.parametrize("option", ["--until", "--status-at"])
def test_a_moment_that_never_comes_is_refused(tmp_path: Path, option: str, moment: str) -> None:
    result = invoke(str(write(tmp_path)), option, moment)
    assert result.exit_code == 2
    assert f"'{option}'" in result.stderr
    assert "not a second that comes" in result.stderr
