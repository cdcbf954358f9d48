from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.load.bench.control.command import control
from tests.load.bench.bench_output import records_of


@pytest.mark.slow
def test_it_measures_a_whole_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(control, ["--requests", "20", "--scales", "1"])
    found = {record["case"]: record for record in records_of(result)}
    assert {"added latency, idle, p50", "added latency, at 70 %, p50", "capacity"} <= set(found), result.output
    assert found["CPU of a request, gateway + router + bus"]["ratio"] > 1
    assert not any("p99" in case for case in found)
