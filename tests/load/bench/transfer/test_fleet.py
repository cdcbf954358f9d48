"""The processes of a transfer bench carry out plans, and end."""

import pytest

from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.transfer.fleet import CarriedPlan, chain_jobs, seconds, started
from livescale.load.bench.transfer.multicast import middle
from livescale.shared.runtime.settings import LinkSettings
from tests.load.bench.transfer.carried_plans import carried

MIB = 1 << 20


def test_a_fleet_goes_on_with_other_processes_after_a_failure() -> None:
    with started(2, LinkSettings(transport="socket"), [MIB] * 2) as fleet:
        before = list(fleet.nodes)
        fleet.run(chain_jobs(fleet, 1, MIB))
        fleet.end()
        fleet.renew()
        assert all(one.address != other.address for one, other in zip(before, fleet.nodes, strict=True))
        assert seconds(fleet.run(chain_jobs(fleet, 1, MIB))) > 0


pytestmark = pytest.mark.system


def test_a_process_that_cannot_open_its_link_is_reported() -> None:
    settings = LinkSettings(bind="203.0.113.7")
    with pytest.raises(BenchFailed, match=r"process 0: bind: .*203\.0\.113\.7"), started(1, settings, [4096]):
        pass


def test_a_plan_took_as_long_as_its_last_target_and_the_median_of_runs_counts() -> None:
    runs = [carried(3.0), carried(1.0), carried(2.0)]
    assert [run.seconds for run in runs] == [3.0, 1.0, 2.0]
    assert middle(runs) is runs[2]


def test_a_pipeline_is_executable_when_its_nodes_have_every_block_between_them() -> None:
    run = carried(4.0)
    first, *others = run.plan.targets
    early = {first: {0: 0.5, 1: 0.6, 2: 4.0, 3: 4.0}, others[0]: {0: 4.0, 1: 4.0, 2: 0.7, 3: 0.9}}
    ready = {**run.ready, **early}
    assert CarriedPlan(run.plan, ready).executable == 0.9
