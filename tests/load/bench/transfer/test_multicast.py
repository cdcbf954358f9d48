"""The cases of `livescale bench transfer` that carry out plans, small; and their picture."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.load.bench.transfer.command import transfer
from livescale.load.bench.transfer.multicast import LANES, two_domains
from livescale.services.planner.plans.make_plan import make_plan
from livescale.services.planner.plans.plan import multicast_over
from livescale.shared.topology.file import find_topology
from tests.load.bench.bench_output import records_of

RATE = 100e6
SIZES = [1_000_000] * 4


def test_a_domain_is_reached_by_as_many_lanes_as_it_has_sources() -> None:
    with two_domains(RATE) as (topology, _):
        cluster = find_topology(str(topology))
    names = [gpu.id for gpu in cluster.gpus]
    for sources in (1, LANES):
        plan = make_plan("chains", multicast_over(cluster, SIZES, names[:sources], names[LANES:]))
        over_network = [flow for flow in plan.flows if flow.over == "network"]
        assert [(flow.lane, flow.lanes) for flow in over_network] == [(lane, sources) for lane in range(sources)]


@pytest.mark.system
@pytest.mark.slow
def test_every_case_prints_its_lines_and_draws_them(tmp_path: Path) -> None:
    picture = tmp_path / "transfer.svg"
    cases = ["--case", "binomial", "--case", "lanes"]
    result = CliRunner().invoke(transfer, [*cases, "--megabytes", "17", "--rate", "50", "--svg", str(picture)])
    records = {record["case"]: record for record in records_of(result)}
    schedules = [f"binomial, k = {sources}" for sources in (1, 2, 4)]
    assert {*schedules, *(f"{case}, first pipeline" for case in schedules)} <= set(records), result.output
    assert records["binomial, k = 1"]["against"] == pytest.approx(18 / 16 * 32 * (1 << 20) / 50e6, rel=0.05)
    assert records[f"one lane, against {LANES}"]["ratio"] > 1, result.output
    assert "binomial, k = 4" in picture.read_text()
    assert result.exit_code == (0 if all(record["ok"] is not False for record in records.values()) else 1)
