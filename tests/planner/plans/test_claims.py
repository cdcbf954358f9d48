"""What BlitzScale and LambdaScale say of loading parameters, on their clusters as they are shipped.

Predicted times are at line rate. Where the papers measured, the share of the line rate that they reached is named.
"""

import pytest

from livescale.services.planner.plans.execution_pipelines import pipeline_ready
from livescale.services.planner.plans.make_plan import Prediction, make_plan, predict
from livescale.services.planner.plans.plan import Policy, TransferPlan, multicast_over
from livescale.shared.topology.file import find_topology
from livescale.shared.transfer.chunks import MIB

NVLINK_SHARE = 0.67  # of the line rate, in a broadcast
GB = 10**9


def planned(
    topology: str,
    gigabytes: float,
    layers: int,
    holders: list[str],
    takers: list[str],
    policy: Policy = "chains",
    *,
    disks: tuple[str, ...] = (),
    blocks: int = 0,
) -> tuple[TransferPlan, Prediction]:
    sizes = [int(gigabytes * GB / layers)] * layers
    multicast = multicast_over(find_topology(topology), sizes, holders, takers, disks=disks)
    plan = make_plan(policy, multicast, blocks=blocks)
    return plan, predict(multicast, plan, MIB)


def gpus(host: str, count: int = 8) -> list[str]:
    return [f"{host}/{index}" for index in range(count)]


def nodes(first: int, last: int) -> list[str]:
    return [f"node{index}/0" for index in range(first, last)]


class TestBlitzScale:
    def test_8b_from_ssd_takes_12_8_seconds(self) -> None:
        _, prediction = planned("cluster-a", 16, 32, [], ["a0/0"], "local", disks=("a0",))
        assert prediction.seconds == pytest.approx(12.8, abs=0.01)

    def test_70b_from_four_ssds_takes_28_seconds(self) -> None:
        plan, prediction = planned("cluster-a", 140, 80, [], ["a0/0"], disks=("a0", "a1", "a2", "a3"))
        assert {flow.lanes for flow in plan.flows} == {4}
        assert prediction.seconds == pytest.approx(28.0, abs=0.01)

    def test_nvlink_broadcasts_8b_to_8_gpus_in_120_ms(self) -> None:
        _, prediction = planned("cluster-a", 16, 32, ["a0/0"], gpus("a0")[1:])
        assert prediction.seconds / NVLINK_SHARE == pytest.approx(0.120, rel=0.02)

    def test_sharding_into_a_domain_divides_the_time(self) -> None:
        """Fig. 14, with as many lanes as a host of cluster A has NICs."""
        _, one_lane = planned("cluster-a", 16, 32, ["a0/0"], gpus("a1"))
        _, eight_lanes = planned("cluster-a", 16, 32, gpus("a0"), gpus("a1"))
        assert one_lane.seconds == pytest.approx(1.28, rel=0.01)
        assert eight_lanes.seconds == pytest.approx(1.28 / 8, rel=0.05)

    def test_more_hosts_hardly_take_longer(self) -> None:
        """Fig. 13 (a)."""
        _, one = planned("cluster-a", 16, 32, gpus("a0"), gpus("a1"))
        _, three = planned("cluster-a", 16, 32, gpus("a0"), [*gpus("a1"), *gpus("a2"), *gpus("a3")])
        assert three.seconds <= 1.05 * one.seconds


class TestLambdaScale:
    """Llama2-13B, 26 GB, on testbed 1."""

    def binomial(self, sources: int) -> tuple[TransferPlan, Prediction]:
        return planned("lambdascale-1", 26, 40, nodes(0, sources), nodes(sources, 8), "binomial", blocks=16)

    def test_13b_gets_to_8_nodes_within_a_second_as_the_formula_says(self) -> None:
        """(b + log2 N - 1) / b * M/B; with blocks that are equal, which 16 of 40 layers are not."""
        _, prediction = planned("lambdascale-1", 26, 16, nodes(0, 1), nodes(1, 8), "binomial", blocks=16)
        assert prediction.seconds == pytest.approx(0.585, abs=1e-6)
        _, real_layers = self.binomial(1)
        assert 0.585 <= real_layers.seconds < 1.0

    def test_it_is_faster_than_a_binary_tree(self) -> None:
        """1.82 times in the paper."""
        _, binomial = planned("lambdascale-1", 26, 16, nodes(0, 1), nodes(1, 8), "binomial", blocks=16)
        _, tree = planned("lambdascale-1", 26, 16, nodes(0, 1), nodes(1, 8), "tree")
        assert tree.seconds / binomial.seconds == pytest.approx(1.82, rel=0.05)

    def test_with_more_sources_the_first_pipeline_executes_earlier(self) -> None:
        first = []
        for sources in (1, 2, 4):
            plan, prediction = self.binomial(sources)
            first.append(min(pipeline_ready(pipeline, prediction.ready) for pipeline in plan.pipelines))
        assert first[2] < first[1] < first[0]
        assert first[0] / first[2] > 3.5

    def test_from_local_memory_all_nodes_make_a_pipeline_long_before_each_is_whole(self) -> None:
        hosts = [f"node{index}" for index in range(8)]
        plan, prediction = planned("lambdascale-1", 26, 40, hosts, nodes(0, 8), "binomial")
        ready = pipeline_ready(plan.pipelines[0], prediction.ready)
        assert prediction.seconds == pytest.approx(26 / 64, rel=0.01)
        assert prediction.seconds / ready == pytest.approx(8, rel=0.05)

    def test_a_cold_start_from_remote_memory_beats_the_disk(self) -> None:
        """3.75 to 11.4 times in the paper; the line rates alone give 10."""
        _, remote = planned("lambdascale-1", 26, 40, ["node0"], nodes(1, 8), "binomial")
        _, disk = planned("lambdascale-1", 26, 40, [], nodes(1, 8), "local", disks=tuple(f"node{i}" for i in range(8)))
        assert 3.75 <= disk.seconds / remote.seconds <= 11.4
