"""`livescale bench transfer --case disk` with a small model."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.load.bench.transfer.command import transfer
from tests.host.test_packed_file import takes_direct_reads
from tests.load.bench.bench_output import records_of

MEGABYTES = 60


@pytest.mark.system
def test_it_prints_a_line_for_each_way_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 16))
    if not takes_direct_reads(tmp_path / "file"):
        pytest.skip("this file system has no direct reads")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(transfer, ["--case", "disk", "--megabytes", str(MEGABYTES), "--passes", "1"])
    records = records_of(result)
    assert [record["case"] for record in records] == [
        "disk, direct reads alone",
        "disk, packed",
        "disk, safetensors as hosts read them",
        "disk, packed against safetensors and copy",
        "disk, first block arrived",
    ], result.output
    assert all(record["value"] > 0 for record in records)
    assert result.exit_code == (0 if all(record["ok"] is not False for record in records) else 1)
    assert list((tmp_path / ".livescale").iterdir()) == []
