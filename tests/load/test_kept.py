"""What load keeps between runs: a checkpoint is made once, and logs stay off the screen."""

from pathlib import Path

import click
import pytest
import structlog

from livescale.load import kept
from livescale.load.kept import kept_model, logged, logs_to, open_log
from livescale.services.supervisor.checks import BadSettings


def test_a_checkpoint_is_made_the_first_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT", tmp_path)
    told: list[str] = []
    first = kept_model("tiny", told.append)
    made_at = (first / "config.json").stat().st_mtime_ns
    assert kept_model("tiny", told.append) == first
    assert (first / "config.json").stat().st_mtime_ns == made_at
    assert len(told) == 1
    assert str(first) in told[0]


def test_lines_of_all_processes_go_into_the_log_with_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "logs" / "bench.log"
    with open_log(path) as echo:
        echo("worker-0", "it loads")
        structlog.get_logger().warning("mine", of="this process")
    assert "worker-0   | it loads" in path.read_text()
    assert "of='this process'" in path.read_text().replace('"', "'")
    assert capsys.readouterr().out == ""


def test_logs_go_where_they_went_before_once_it_is_over(tmp_path: Path) -> None:
    before = structlog.get_config()
    with (tmp_path / "log").open("w") as file, pytest.raises(ValueError, match="broken"), logs_to(file):
        raise ValueError("broken")
    assert structlog.get_config() == before


def test_what_a_system_raises_becomes_one_line_that_says_where_the_logs_are(tmp_path: Path) -> None:
    path = tmp_path / "bench.log"
    with pytest.raises(click.ClickException) as failed, logged(path):
        raise BadSettings("port: 8000 is taken")
    assert failed.value.message == f"port: 8000 is taken\nThe processes' logs are in {path}"
