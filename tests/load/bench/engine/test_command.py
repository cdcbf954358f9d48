from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.load.bench.engine import command as bench
from livescale.load.bench.engine.rows import (
    OWN,
    TRANSFORMERS,
    rows,
)
from tests.load.bench.bench_output import records_of
from tests.load.bench.engine.runs import measured_run


@pytest.mark.slow
def test_it_prints_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "SIZES", {"30m": "tiny"})
    result = CliRunner().invoke(bench.engine, ["--sizes", "30m", "--rounds", "1", "--no-peers"])
    cases = [record["case"] for record in records_of(result)]
    expected = [*rows(measured_run({OWN: 1.0, TRANSFORMERS: 1.0}, "30m"))]
    assert {record.case for record in expected} <= set(cases), result.output
    assert "python of a layer, batch 8" in cases
    assert (tmp_path / "livescale-engine.html").exists()
