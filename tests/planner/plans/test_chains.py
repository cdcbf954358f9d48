"""BlitzScale's Fig. 11 line by line, its examples, and what holds of every plan."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.plan import (
    BUSY_SHARE,
    Multicast,
    ServingFlow,
    Traffic,
    TransferPlan,
    multicast_over,
)
from tests.planner.plans.clusters import BLOCKS, SIX, cluster, flows_to, hops, machine, multicasts, singles
from tests.planner.plans.plan_checks import check_plan, plan_checked_chains


class TestLine1:
    def test_a_node_that_serving_sends_from_is_no_source(self) -> None:
        made = plan_checked_chains(SIX, ["h0/0", "h1/0"], ["h2/0"], serving=(ServingFlow("h0/0", "out", 0.5),))
        assert hops(made) == [("h1/0", "h2/0")]
        assert made.pruned == (("h0/0", "out"),)
        assert made.reasons == ("not from h0/0 (50% of its NIC out is taken)",)

    def test_traffic_in_the_other_direction_does_not_matter(self) -> None:
        """Fig. 7 (d): from the decode instance, which KV comes in to."""
        made = plan_checked_chains(
            SIX, ["h0/0"], ["h1/0"], serving=(ServingFlow("h0/0", "in", 0.9), ServingFlow("h1/0", "out", 0.9))
        )
        assert hops(made) == [("h0/0", "h1/0")]

    @pytest.mark.parametrize(("rate", "pruned"), [(BUSY_SHARE, ()), (BUSY_SHARE * 1.01, (("h0/0", "out"),))])
    def test_measured_load_counts_and_not_the_role(self, rate: float, pruned: tuple[object, ...]) -> None:
        made = plan_checked_chains(SIX, ["h0/0", "h1/0"], ["h2/0"], serving=(ServingFlow("h0/0", "out", rate),))
        assert made.pruned == pruned

    def test_if_serving_sends_from_all_the_least_busy_is_kept_and_named(self) -> None:
        serving = (ServingFlow("h0/0", "out", 0.5), ServingFlow("h1/0", "out", 0.3), ServingFlow("h1/0", "out", 0.1))
        made = plan_checked_chains(SIX, ["h0/0", "h1/0"], ["h2/0"], serving=serving)
        assert hops(made) == [("h1/0", "h2/0")]
        assert made.pruned == (("h0/0", "out"),)
        assert made.reasons == ("there is none better than h1/0 (40% of its NIC out is taken)",)

    def test_gpus_that_share_a_nic_are_busy_together(self) -> None:
        shared = cluster(machine("a", 2, own_nics=False, joined=False), *singles(2))
        made = plan_checked_chains(shared, ["a/0", "a/1", "h0/0"], ["h1/0"], serving=(ServingFlow("a/1", "out", 0.5),))
        assert hops(made) == [("h0/0", "h1/0")]
        assert made.pruned == (("a/0", "out"), ("a/1", "out"))

    def test_the_leaf_with_the_highest_bandwidth_feeds_first(self) -> None:
        topology = cluster(*singles(1, "a", "l0"), *singles(2, "b", "l1"), *singles(1, "t", "l2"))
        made = plan_checked_chains(topology, ["a0/0", "b0/0", "b1/0"], ["t0/0"])
        assert hops(made) == [("b0/0", "t0/0")]

    def test_in_a_leaf_the_fastest_source_feeds_first_then_a_gpu_before_a_host(self) -> None:
        topology = cluster(machine("a"), machine("b", nic=2.0), machine("c"))
        assert hops(plan_checked_chains(topology, ["a/0", "b/0"], ["c/0"])) == [("b/0", "c/0")]
        assert hops(plan_checked_chains(topology, ["a", "b/0"], ["c/0"])) == [("b/0", "c/0")]
        assert hops(plan_checked_chains(SIX, ["h0", "h1/0"], ["h2/0"])) == [("h1/0", "h2/0")]

    def test_a_host_feeds_before_an_equally_fast_gpu_that_serves_requests(self) -> None:
        multicast = multicast_over(SIX, BLOCKS, ["h0", "h1/0"], ["h2/0"])
        host, gpu = multicast.sources
        serving = structs.replace(gpu, node=structs.replace(gpu.node, requests=1))
        assert hops(plan_chains(structs.replace(multicast, sources=(host, serving)))) == [("h0", "h2/0")]


class TestLine2:
    def test_targets_of_a_domain_are_one_group_and_the_fastest_comes_first(self) -> None:
        """Fig. 13 (b): S -> T2 -> T1, as S sends twice as fast to T2."""
        topology = cluster(machine("s", nic=2.0), machine("t1"), machine("t2", nic=2.0))
        assert hops(plan_checked_chains(topology, ["s/0"], ["t1/0", "t2/0"])) == [("s/0", "t2/0"), ("t2/0", "t1/0")]

    def test_leaves_come_in_the_order_of_the_sources(self) -> None:
        topology = cluster(*singles(3, "a", "l0"), *singles(3, "b", "l1"), *singles(1, "c", "l2"))
        made = plan_checked_chains(topology, ["a0/0", "b0/0", "b1/0"], ["a1/0", "a2/0", "b2/0", "c0/0"])
        assert made.targets == ("b2/0", "a1/0", "a2/0", "c0/0")

    def test_gpus_that_share_a_nic_have_its_bandwidth_once(self) -> None:
        topology = cluster(machine("s", 2), machine("t", 4, own_nics=False), machine("u", 2))
        made = plan_checked_chains(topology, ["s/0", "s/1"], ["t/0", "t/1", "t/2", "t/3", "u/0", "u/1"])
        assert made.targets[:2] == ("u/0", "u/1")
        assert {flow.lanes for flow in flows_to(made, "t/0")} == {1}


class TestLines3And4:
    def test_as_many_targets_as_are_wanted(self) -> None:
        made = plan_checked_chains(SIX, ["h0/0"], [f"h{index}/0" for index in range(1, 6)], count=3)
        assert made.targets == ("h1/0", "h2/0", "h3/0")

    def test_a_group_is_cut_where_fewer_are_wanted(self) -> None:
        topology = cluster(machine("s", 4), machine("t", 4))
        made = plan_checked_chains(topology, ["s/0", "s/1"], [f"t/{index}" for index in range(4)], count=3)
        assert made.targets == ("t/0", "t/1", "t/2")

    def test_it_ends_when_there_is_no_target_left(self) -> None:
        made = plan_checked_chains(SIX, ["h0/0"], ["h1/0"], count=3)
        assert made.targets == ("h1/0",)


class TestLines5To7:
    def test_a_leaf_with_enough_sources_is_fed_from_within(self) -> None:
        topology = cluster(*singles(2, "a", "l0"), *singles(2, "b", "l1"))
        made = plan_checked_chains(topology, ["a0/0", "b0/0"], ["a1/0", "b1/0"])
        assert hops(made) == [("a0/0", "a1/0"), ("b0/0", "b1/0")]

    def test_a_leaf_with_too_few_sources_is_fed_from_the_front(self) -> None:
        topology = cluster(machine("s", 2), machine("b", leaf="l1"), machine("t", 2, leaf="l1"))
        made = plan_checked_chains(topology, ["s/0", "s/1", "b/0"], ["t/0", "t/1"])
        assert hops(made) == [("s/0", "t/0"), ("s/1", "t/1")]

    def test_a_leaf_without_sources_is_entered_once(self) -> None:
        topology = cluster(*singles(3, "a", "l0"), *singles(3, "b", "l1"))
        made = plan_checked_chains(topology, ["a0/0", "a1/0"], ["a2/0", "b0/0", "b1/0", "b2/0"])
        crossing = [(sender, receiver) for sender, receiver in hops(made) if sender[0] != receiver[0]]
        assert len(crossing) == 1


class TestLine8:
    def test_no_more_sources_than_the_targets_can_take_from(self) -> None:
        topology = cluster(machine("s", 4), machine("t", 2))
        made = plan_checked_chains(topology, ["s/0", "s/1", "s/2", "s/3"], ["t/0", "t/1"])
        assert hops(made) == [("s/0", "t/0"), ("s/1", "t/1")]

    def test_several_slow_sources_feed_one_fast_target(self) -> None:
        topology = cluster(*(machine(f"d{index}", disk=0.25) for index in range(4)), machine("t"))
        made = plan_checked_chains(topology, [], ["t/0"], disks=("d0", "d1", "d2", "d3"))
        assert [(flow.sender, flow.lane, flow.lanes) for flow in made.flows] == [
            ("d0", 0, 4), ("d1", 1, 4), ("d2", 2, 4), ("d3", 3, 4)
        ]  # fmt: skip

    def test_one_fast_host_feeds_several_gpus(self) -> None:
        topology = cluster(machine("s", host_nic=4.0), machine("t", 4))
        made = plan_checked_chains(topology, ["s"], [f"t/{index}" for index in range(4)])
        assert hops(made) == [("s", f"t/{index}") for index in range(4)]

    def test_all_there_is_where_that_is_not_enough(self) -> None:
        topology = cluster(machine("s", 2), machine("t", 4))
        made = plan_checked_chains(topology, ["s/0", "s/1"], [f"t/{index}" for index in range(4)])
        assert hops(made) == [("s/0", "t/0"), ("s/1", "t/1")]


class TestLines9And10:
    def test_targets_go_on_as_sources(self) -> None:
        made = plan_checked_chains(SIX, ["h0/0"], ["h1/0", "h2/0", "h3/0"])
        assert hops(made) == [("h0/0", "h1/0"), ("h1/0", "h2/0"), ("h2/0", "h3/0")]
        assert made.tails == ("h3/0",)

    def test_targets_come_in_front_of_the_sources_of_other_leaves(self) -> None:
        topology = cluster(*singles(1, "a", "l0"), *singles(1, "b", "l1"), *singles(2, "t", "l2"))
        made = plan_checked_chains(topology, ["a0/0", "b0/0"], ["t0/0", "t1/0"])
        assert hops(made) == [("a0/0", "t0/0"), ("t0/0", "t1/0")]

    def test_a_node_that_serving_sends_from_passes_nothing_on(self) -> None:
        made = plan_checked_chains(SIX, ["h0/0"], ["h1/0", "h2/0", "h3/0"], serving=(ServingFlow("h1/0", "out", 0.5),))
        assert hops(made) == [("h0/0", "h2/0"), ("h2/0", "h3/0"), ("h3/0", "h1/0")]

    def test_if_nobody_can_pass_on_the_source_sends_to_all(self) -> None:
        serving = tuple(ServingFlow(f"h{index}/0", "out", 0.5) for index in (1, 2))
        made = plan_checked_chains(SIX, ["h0/0"], ["h1/0", "h2/0"], serving=serving)
        assert hops(made) == [("h0/0", "h1/0"), ("h0/0", "h2/0")]
        assert made.tails == ("h1/0", "h2/0")

    def test_a_node_that_serving_sends_to_is_taken_last_and_named(self) -> None:
        serving = (ServingFlow("h1/0", "in", 0.5),)
        assert plan_checked_chains(SIX, ["h0/0"], ["h1/0", "h2/0"], count=1, serving=serving).targets == ("h2/0",)
        made = plan_checked_chains(SIX, ["h0/0"], ["h1/0", "h2/0"], serving=serving)
        assert made.targets == ("h2/0", "h1/0")
        assert made.reasons == ("there is none better than h1/0 (50% of its NIC in is taken)",)


class TestFig12:
    def test_two_sources_make_two_chains_and_both_tails_can_go_live(self) -> None:
        made = plan_checked_chains(SIX, ["h0/0", "h1/0"], ["h2/0", "h3/0"])
        assert hops(made) == [("h0/0", "h2/0"), ("h1/0", "h3/0")]
        assert made.tails == ("h2/0", "h3/0")

    def test_one_source_makes_one_chain_and_its_tail_can_go_live(self) -> None:
        assert plan_checked_chains(SIX, ["h0/0"], ["h2/0", "h3/0"]).tails == ("h3/0",)

    def test_chains_are_as_many_as_sources_and_about_as_long(self) -> None:
        topology = cluster(*singles(10))
        made = plan_checked_chains(topology, ["h0/0", "h1/0", "h2/0"], [f"h{index}/0" for index in range(3, 10)])
        assert len(made.tails) == 3
        assert sorted(lengths(made)) == [2, 2, 3]


class TestFig14:
    def test_four_gpus_send_a_quarter_each_and_the_domain_gathers(self) -> None:
        topology = cluster(machine("s", 4), machine("t", 4))
        made = plan_checked_chains(topology, [f"s/{index}" for index in range(4)], [f"t/{index}" for index in range(4)])
        outside = [flow for flow in made.flows if flow.over == "network"]
        assert [(flow.sender, flow.receiver, flow.lane, flow.lanes) for flow in outside] == [
            (f"s/{lane}", f"t/{lane}", lane, 4) for lane in range(4)
        ]
        inside = [flow for flow in made.flows if flow.over == "domain"]
        assert sorted((flow.receiver, flow.lane) for flow in inside) == [
            (f"t/{index}", lane) for index in range(4) for lane in range(4) if lane != index
        ]

    def test_lanes_go_on_from_domain_to_domain(self) -> None:
        topology = cluster(machine("s", 2), machine("t", 2), machine("u", 2))
        made = plan_checked_chains(topology, ["s/0", "s/1"], ["t/0", "t/1", "u/0", "u/1"])
        assert hops(made) == [("s/0", "t/0"), ("s/1", "t/1"), ("t/0", "u/0"), ("t/1", "u/1")]
        assert made.tails == ("u/0", "u/1")


@given(multicasts())
@settings(max_examples=50)
def test_what_must_hold_of_every_plan_holds(multicast: Multicast) -> None:
    made = plan_chains(multicast)
    check_plan(multicast, made)
    assert len(made.targets) == multicast.wanted


@given(multicasts(partial=False))
@settings(max_examples=50)
def test_serving_is_in_the_way_only_of_a_plan_that_has_no_other(multicast: Multicast) -> None:
    made, traffic, nodes = plan_chains(multicast), Traffic(multicast), multicast.nodes
    memories = [source.node for source in multicast.sources if source.node.place != "disk"]
    holders = memories or [source.node for source in multicast.sources]
    if all(traffic.is_busy(node, "out") for node in holders):
        return
    for flow in made.flows:
        assert flow.over != "network" or not traffic.is_busy(nodes[flow.sender], "out")


@given(multicasts(), st.randoms())
@settings(max_examples=50)
def test_the_order_in_which_the_pool_is_told_does_not_matter(multicast: Multicast, chance: random.Random) -> None:
    sources, targets = list(multicast.sources), list(multicast.targets)
    chance.shuffle(sources)
    chance.shuffle(targets)
    shuffled = structs.replace(multicast, sources=tuple(sources), targets=tuple(targets))
    assert plan_chains(shuffled).flows == plan_chains(multicast).flows


def lengths(plan: TransferPlan) -> list[int]:
    """Return how many targets each chain of the plan has."""
    upstream = {receiver: sender for sender, receiver in hops(plan)}

    def length(node: str) -> int:
        return 1 + length(upstream[node]) if node in upstream else 0

    return [length(tail) for tail in plan.tails]
