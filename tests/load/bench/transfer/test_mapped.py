import pytest
from click.testing import CliRunner

from livescale.load.bench.transfer.command import transfer
from tests.load.bench.bench_output import records_of

pytestmark = pytest.mark.system


@pytest.mark.slow
def test_it_prints_what_sharing_takes_against_sending() -> None:
    result = CliRunner().invoke(transfer, ["--case", "share", "--megabytes", "30", "--passes", "1"])
    records = records_of(result)
    cases = ["share, 1 receiver", "share, 3 receivers"]
    assert [record["case"] for record in records] == [name for case in cases for name in (case, f"{case}, CPU of all")]
    assert all(record["ratio"] > 0 for record in records), result.output
