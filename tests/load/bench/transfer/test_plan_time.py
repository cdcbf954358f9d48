"""The plan times of `livescale bench transfer`, with small clusters."""

import pytest
from click.testing import CliRunner

from livescale.load.bench.transfer import plan_time
from livescale.load.bench.transfer.command import transfer
from livescale.load.bench.transfer.plan_time import slope
from tests.load.bench.bench_output import records_of


def test_it_prints_a_line_for_each_size_and_the_exponent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_time, "SIZES", (4, 16))
    result = CliRunner().invoke(transfer, ["--case", "plan-time"])
    records = {record["case"]: record for record in records_of(result)}
    assert {"plan, chains, 4 targets", "plan, chains, 16 targets", "plan, chains, exponent"} <= set(records), (
        result.output
    )
    assert records["plan, chains, exponent"]["bar"] == 1.2
    assert all(record["value"] > 0 for record in records.values())


def test_the_exponent_is_the_slope_of_logarithms() -> None:
    assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx(2.0)
