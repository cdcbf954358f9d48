"""`livescale bench transfer --case starts`, small."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.load.bench.transfer.command import transfer
from livescale.load.bench.transfer.start_cases import STARTS
from tests.load.bench.bench_output import records_of


@pytest.mark.system
@pytest.mark.slow
def test_it_prints_a_line_for_each_start_and_its_first_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--case", "starts", "--megabytes", "40", "--rate", "200", "--transport", "socket"]
    result = CliRunner().invoke(transfer, options)
    records = records_of(result)
    cases = [case for start in STARTS for case in (start.case, f"{start.case}, first pipeline")]
    assert [record["case"] for record in records] == [*cases, "cold, k = 3, against warm, k = 1"], result.output
    assert all(record["value"] > 0 for record in records)
    assert list((tmp_path / ".livescale").iterdir()) == []
