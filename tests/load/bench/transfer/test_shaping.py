import pytest
from click.testing import CliRunner

from livescale.load.bench.transfer.command import transfer
from livescale.load.bench.transfer.shaping import CASES
from tests.load.bench.bench_output import records_of

pytestmark = pytest.mark.system


@pytest.mark.slow
def test_it_prints_a_line_for_each_way_in_which_flows_meet() -> None:
    result = CliRunner().invoke(transfer, ["--case", "shaping", "--megabytes", "17", "--rate", "50"])
    records = records_of(result)
    assert [record["case"] for record in records] == [f"shaping, {case}" for case in CASES], result.output
    assert all(record["ratio"] > 0 for record in records), result.output
    assert result.exit_code == (0 if all(record["ok"] for record in records) else 1)
