"""Plans for the papers' clusters: the paper's hosts, all takers served, and times that bandwidth allows."""

import pytest

from livescale.load.claims.plans import GB, PlannedTransfers, cluster, equal_blocks, gpus, hosts_as_a, planned
from livescale.services.planner.plans.plan import Policy

BLOCKS = equal_blocks(16.0, 32)


def over_two_hosts(policy: Policy) -> PlannedTransfers:
    topology = hosts_as_a(3)
    return planned(topology, BLOCKS, gpus("a0", 1), [*gpus("a1", 1), *gpus("a2", 1)], policy)


def test_blocks_of_equal_size_are_the_model() -> None:
    assert len(set(BLOCKS)) == 1
    assert sum(BLOCKS) == pytest.approx(16.0 * GB)


def test_hosts_are_like_those_of_cluster_a_each_with_a_domain_of_its_own_or_all_in_one() -> None:
    like = cluster("cluster-a").hosts[0]
    apart, joined = hosts_as_a(3), hosts_as_a(3, joined=True)
    for topology in (apart, joined):
        assert [host.id for host in topology.hosts] == ["a0", "a1", "a2"]
        assert all((host.nic_out, len(host.gpus)) == (like.nic_out, len(like.gpus)) for host in topology.hosts)
        assert [gpu.id for gpu in topology.gpus][:8] == gpus("a0")
    assert len({gpu.domain for gpu in apart.gpus}) == len(apart.domains) == 3
    assert {gpu.domain for gpu in joined.gpus} == {domain.id for domain in joined.domains} == {"pod"}


@pytest.mark.parametrize("policy", ["chains", "binomial", "tree", "fanout"])
def test_a_plan_is_done_no_sooner_than_one_line_rate_allows(policy: Policy) -> None:
    made = over_two_hosts(policy)
    fastest = sum(BLOCKS) / cluster("cluster-a").hosts[0].nic_out
    assert made.seconds >= fastest
    assert {flow.receiver for flow in made.plan.flows} == {"a1/0", "a2/0"}


def test_a_chain_to_two_takes_hardly_longer_than_to_one_and_a_fan_out_twice_as_long() -> None:
    topology = hosts_as_a(3)
    one = planned(topology, BLOCKS, gpus("a0", 1), gpus("a1", 1))
    assert over_two_hosts("chains").seconds < 1.2 * one.seconds
    assert over_two_hosts("fanout").seconds == pytest.approx(2 * one.seconds, rel=0.1)
