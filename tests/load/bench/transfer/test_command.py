"""`livescale bench transfer` with a small set, over real processes."""

import pytest
from click.testing import CliRunner

from livescale.load.bench.transfer.command import transfer
from tests.load.bench.bench_output import records_of

pytestmark = pytest.mark.system


@pytest.mark.parametrize("transport", ["ucx", pytest.param("socket", marks=pytest.mark.slow)])
def test_it_prints_a_line_for_the_hop_and_for_each_chain(transport: str) -> None:
    flags = ["--transport", transport, "--megabytes", "30", "--passes", "1", "--rate", "200"]
    cases = ["--case", "hop", "--case", "chains"]
    result = CliRunner().invoke(transfer, [*flags, *cases, "--receivers", "1", "--receivers", "3"])
    records = {record["case"]: record for record in records_of(result)}
    assert {"memcpy", "hop", "hop, checksums", "chain of 1", "chain of 3"} <= set(records), result.output
    assert ("kernel's copy" in records) == (transport == "ucx")
    assert records["chain of 3"]["against"] == pytest.approx(2 * (16 << 20) / 200e6, rel=1e-3)
    assert records["chain of 3"]["ratio"] >= 0.9
    assert result.exit_code == (0 if all(record["ok"] is not False for record in records.values()) else 1)
