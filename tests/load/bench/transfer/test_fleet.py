import pytest

from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.transfer.fleet import started
from livescale.load.bench.transfer.jobs import chain_jobs, seconds
from livescale.shared.runtime.settings import LinkSettings

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
