import pytest
from msgspec.structs import replace

from livescale.load.bench.pipeline.system import TRAFFIC_LEFT
from livescale.load.bench.transfer.multicast import flat
from livescale.load.bench.watch import Watch
from livescale.services.planner.plans.make_plan import make_plan
from livescale.services.planner.plans.plan import BUSY_SHARE, ServingFlow
from livescale.shared.messages.membership import PeerTraffic, WorkerReport


def test_what_the_run_before_moved_is_seen_until_it_is_forgotten() -> None:
    watch = Watch()
    assert watch.traffic() == 0.0
    peers = [PeerTraffic(peer=b"one", sent=3e5, received=1e5), PeerTraffic(peer=b"two", sent=0.0, received=2e5)]
    quiet = WorkerReport(id="a", epoch=1, state="serving", arena_bytes=1)
    watch.hear(quiet)
    watch.hear(replace(quiet, id="b", traffic=peers))
    assert watch.traffic() == pytest.approx(6e5)
    watch.hear(replace(quiet, id="b", traffic=[]))
    assert watch.traffic() == 0.0


@pytest.mark.parametrize(("share", "pipelines"), [(TRAFFIC_LEFT, 2), (1.02 * BUSY_SHARE, 1)])
def test_a_source_that_has_moved_too_much_of_late_is_left_out_and_two_pipelines_with_it(
    share: float, pipelines: int
) -> None:
    _, multicast = flat(6, 2, 8e6, [8_000_000] * 6)
    moved = ServingFlow(multicast.sources[0].node.id, "out", share * 8e6)
    plan = make_plan("binomial", replace(multicast, serving=(moved,)))
    assert len(plan.pipelines) == pipelines
    assert any(reason.startswith("not from") for reason in plan.reasons) is (pipelines == 1)
