"""`livescale bench simulate`, on small systems."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.load.scenario.bench import command
from livescale.load.scenario.bench.cases import Traces
from livescale.load.scenario.bench.command import simulate
from livescale.load.scenario.bench.rows import ROWS, BenchSizes, RowMaker, makers
from tests.load.bench.bench_output import records_of

SMALL = BenchSizes(idle_workers=4, idle_seconds=5.0)


def test_a_row_that_is_chosen_is_run_alone_and_held_against_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "QUICK", SMALL)
    result = CliRunner().invoke(simulate, ["--quick", "--row", "idle"])
    (idle,) = records_of(result)
    assert (idle["case"], idle["against"], idle["bar"]) == ("4 workers idle", 5000.0, 1.0)
    assert idle["ok"] == (idle["value"] >= 5000.0)
    assert result.exit_code == (0 if idle["ok"] else 1)
    assert "Made up, for want of a file: conversations, code" in result.stderr


def test_every_row_has_its_name() -> None:
    assert tuple(makers(RowMaker(SMALL, Traces(), print))) == ROWS


def test_a_trace_that_cannot_be_read_is_told_before_anything_runs(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("one,two\n")
    result = CliRunner().invoke(simulate, ["--code", str(trace)])
    assert result.exit_code == 2
    assert "--code: " in result.stderr
    assert "trace.csv" in result.stderr
