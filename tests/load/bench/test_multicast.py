"""The cases of `livescale bench transfer` that carry out plans, small; and their picture."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.load.bench.carry import Carried
from livescale.load.bench.multicast import LANES, flat, middle, two_domains
from livescale.load.bench.picture import draw_transfers
from livescale.load.bench.record import measured
from livescale.load.bench.transfer import transfer
from livescale.services.planner.plans.choose import make_plan
from livescale.services.planner.plans.network import multicast_over
from livescale.shared.topology.file import find_topology
from tests.load.bench.printed import records_in

RATE = 100e6
SIZES = [1_000_000] * 4


def carried(seconds: float, sources: int = 1) -> Carried:
    _, multicast = flat(4, sources, RATE, SIZES)
    plan = make_plan("binomial", multicast, sources=sources, blocks=4)
    return Carried(plan, {target: {block: seconds * (block + 1) / 4 for block in range(4)} for target in plan.targets})


def test_a_plan_took_as_long_as_its_last_target_and_the_median_of_runs_counts() -> None:
    runs = [carried(3.0), carried(1.0), carried(2.0)]
    assert [run.seconds for run in runs] == [3.0, 1.0, 2.0]
    assert middle(runs) is runs[2]


def test_a_pipeline_is_executable_when_its_nodes_have_every_block_between_them() -> None:
    run = carried(4.0)
    first, *others = run.plan.targets
    early = {first: {0: 0.5, 1: 0.6, 2: 4.0, 3: 4.0}, others[0]: {0: 4.0, 1: 4.0, 2: 0.7, 3: 0.9}}
    ready = {**run.ready, **early}
    assert Carried(run.plan, ready).executable == 0.9


def test_a_domain_is_reached_by_as_many_lanes_as_it_has_sources() -> None:
    with two_domains(RATE) as (topology, _):
        cluster = find_topology(str(topology))
    names = [gpu.id for gpu in cluster.gpus]
    for sources in (1, LANES):
        plan = make_plan("chains", multicast_over(cluster, SIZES, names[:sources], names[LANES:]))
        over_network = [flow for flow in plan.flows if flow.over == "network"]
        assert [(flow.lane, flow.lanes) for flow in over_network] == [(lane, sources) for lane in range(sources)]


def test_the_picture_has_a_bar_for_each_ratio_and_a_panel_for_each_plan() -> None:
    records = [
        measured("transfer", "chain of 7", 4.1, "s", 4.0, at_most=1.05),
        measured("transfer", "fanout to 7", 28.0, "s", 0.1, at_least=6.0),  # off the scale
        measured("transfer", "memcpy", 9.0, "GB/s"),
    ]
    svg = draw_transfers(records, {"binomial, k = 1": carried(1.0), "chain of 7": carried(2.0)})
    words = {(element.text or "").strip() for element in ET.fromstring(svg).iter() if element.text}
    assert {"chain of 7", "fanout to 7", "1.02", "280", "binomial, k = 1: 1.00 s", "chain of 7: 2.00 s"} <= words
    assert "memcpy" not in words
    assert draw_transfers([], {}).startswith("<svg")


@pytest.mark.system
@pytest.mark.slow
def test_every_case_prints_its_lines_and_draws_them(tmp_path: Path) -> None:
    picture = tmp_path / "transfer.svg"
    cases = ["--case", "binomial", "--case", "lanes"]
    result = CliRunner().invoke(transfer, [*cases, "--megabytes", "17", "--rate", "50", "--svg", str(picture)])
    records = {record["case"]: record for record in records_in(result.stdout)}
    schedules = [f"binomial, k = {sources}" for sources in (1, 2, 4)]
    assert {*schedules, *(f"{case}, first pipeline" for case in schedules)} <= set(records), result.output
    assert records["binomial, k = 1"]["against"] == pytest.approx(18 / 16 * 32 * (1 << 20) / 50e6, rel=0.05)
    assert records[f"one lane, against {LANES}"]["ratio"] > 1, result.output
    assert "binomial, k = 4" in picture.read_text()
    assert result.exit_code == (0 if all(record["ok"] is not False for record in records.values()) else 1)


def test_a_picture_that_cannot_be_written_is_told_in_a_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(transfer, ["--case", "plan-time", "--svg", str(tmp_path)])
    assert result.exit_code == 2
    assert "is a directory" in result.output
