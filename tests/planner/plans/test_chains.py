"""BlitzScale's Fig. 11 line by line, its examples, and what holds of every plan."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.check import check_plan
from livescale.services.planner.plans.network import Multicast, ServingFlow, multicast_over
from livescale.services.planner.plans.plan import CannotPlan, Flow, TransferPlan
from livescale.services.planner.plans.traffic import BUSY_SHARE, Traffic
from livescale.shared.topology.topology import Topology
from tests.planner.plans.made import BLOCKS, EVERY, cluster, flows_to, hops, machine, multicasts, parts, singles


def plan(
    topology: Topology,
    holders: list[str],
    targets: list[str],
    count: int = 0,
    disks: tuple[str, ...] = (),
    serving: tuple[ServingFlow, ...] = (),
) -> TransferPlan:
    multicast = multicast_over(topology, BLOCKS, holders, targets, count=count, disks=disks, serving=serving)
    made = plan_chains(multicast)
    check_plan(multicast, made)
    return made


SIX = cluster(*singles(6))


class TestLine1:
    def test_who_serving_sends_from_is_no_source(self) -> None:
        made = plan(SIX, ["h0/0", "h1/0"], ["h2/0"], serving=(ServingFlow("h0/0", "out", 0.5),))
        assert hops(made) == [("h1/0", "h2/0")]
        assert made.pruned == (("h0/0", "out"),)
        assert made.reasons == ("not from h0/0 (50% of its NIC out is taken)",)

    def test_traffic_in_the_other_direction_does_not_matter(self) -> None:
        """Fig. 7 (d): from the decode instance, which KV comes in to."""
        made = plan(SIX, ["h0/0"], ["h1/0"], serving=(ServingFlow("h0/0", "in", 0.9), ServingFlow("h1/0", "out", 0.9)))
        assert hops(made) == [("h0/0", "h1/0")]

    @pytest.mark.parametrize(("rate", "pruned"), [(BUSY_SHARE, ()), (BUSY_SHARE * 1.01, (("h0/0", "out"),))])
    def test_measured_load_counts_and_not_the_role(self, rate: float, pruned: tuple[object, ...]) -> None:
        made = plan(SIX, ["h0/0", "h1/0"], ["h2/0"], serving=(ServingFlow("h0/0", "out", rate),))
        assert made.pruned == pruned

    def test_if_serving_sends_from_all_the_least_busy_is_kept_and_named(self) -> None:
        serving = (ServingFlow("h0/0", "out", 0.5), ServingFlow("h1/0", "out", 0.3), ServingFlow("h1/0", "out", 0.1))
        made = plan(SIX, ["h0/0", "h1/0"], ["h2/0"], serving=serving)
        assert hops(made) == [("h1/0", "h2/0")]
        assert made.pruned == (("h0/0", "out"),)
        assert made.reasons == ("there is none better than h1/0 (40% of its NIC out is taken)",)

    def test_gpus_that_share_a_nic_are_busy_together(self) -> None:
        shared = cluster(machine("a", 2, own_nics=False, joined=False), *singles(2))
        made = plan(shared, ["a/0", "a/1", "h0/0"], ["h1/0"], serving=(ServingFlow("a/1", "out", 0.5),))
        assert hops(made) == [("h0/0", "h1/0")]
        assert made.pruned == (("a/0", "out"), ("a/1", "out"))

    def test_the_leaf_with_the_highest_bandwidth_feeds_first(self) -> None:
        topology = cluster(*singles(1, "a", "l0"), *singles(2, "b", "l1"), *singles(1, "t", "l2"))
        made = plan(topology, ["a0/0", "b0/0", "b1/0"], ["t0/0"])
        assert hops(made) == [("b0/0", "t0/0")]

    def test_in_a_leaf_the_fastest_source_feeds_first_then_a_gpu_before_a_host(self) -> None:
        topology = cluster(machine("a"), machine("b", nic=2.0), machine("c"))
        assert hops(plan(topology, ["a/0", "b/0"], ["c/0"])) == [("b/0", "c/0")]
        assert hops(plan(topology, ["a", "b/0"], ["c/0"])) == [("b/0", "c/0")]
        assert hops(plan(SIX, ["h0", "h1/0"], ["h2/0"])) == [("h1/0", "h2/0")]

    def test_a_host_feeds_before_an_equally_fast_gpu_that_serves_requests(self) -> None:
        multicast = multicast_over(SIX, BLOCKS, ["h0", "h1/0"], ["h2/0"])
        host, gpu = multicast.sources
        serving = structs.replace(gpu, node=structs.replace(gpu.node, requests=1))
        assert hops(plan_chains(structs.replace(multicast, sources=(host, serving)))) == [("h0", "h2/0")]


class TestLine2:
    def test_targets_of_a_domain_are_one_group_and_the_fastest_comes_first(self) -> None:
        """Fig. 13 (b): S -> T2 -> T1, as S sends twice as fast to T2."""
        topology = cluster(machine("s", nic=2.0), machine("t1"), machine("t2", nic=2.0))
        assert hops(plan(topology, ["s/0"], ["t1/0", "t2/0"])) == [("s/0", "t2/0"), ("t2/0", "t1/0")]

    def test_leaves_come_in_the_order_of_the_sources(self) -> None:
        topology = cluster(*singles(3, "a", "l0"), *singles(3, "b", "l1"), *singles(1, "c", "l2"))
        made = plan(topology, ["a0/0", "b0/0", "b1/0"], ["a1/0", "a2/0", "b2/0", "c0/0"])
        assert made.targets == ("b2/0", "a1/0", "a2/0", "c0/0")

    def test_gpus_that_share_a_nic_have_its_bandwidth_once(self) -> None:
        topology = cluster(machine("s", 2), machine("t", 4, own_nics=False), machine("u", 2))
        made = plan(topology, ["s/0", "s/1"], ["t/0", "t/1", "t/2", "t/3", "u/0", "u/1"])
        assert made.targets[:2] == ("u/0", "u/1")
        assert {flow.lanes for flow in flows_to(made, "t/0")} == {1}


class TestLines3And4:
    def test_as_many_targets_as_are_wanted(self) -> None:
        made = plan(SIX, ["h0/0"], [f"h{index}/0" for index in range(1, 6)], count=3)
        assert made.targets == ("h1/0", "h2/0", "h3/0")

    def test_a_group_is_cut_where_fewer_are_wanted(self) -> None:
        topology = cluster(machine("s", 4), machine("t", 4))
        made = plan(topology, ["s/0", "s/1"], [f"t/{index}" for index in range(4)], count=3)
        assert made.targets == ("t/0", "t/1", "t/2")

    def test_it_ends_when_there_is_no_target_left(self) -> None:
        made = plan(SIX, ["h0/0"], ["h1/0"], count=3)
        assert made.targets == ("h1/0",)


class TestLines5To7:
    def test_a_leaf_with_enough_sources_is_fed_from_within(self) -> None:
        topology = cluster(*singles(2, "a", "l0"), *singles(2, "b", "l1"))
        made = plan(topology, ["a0/0", "b0/0"], ["a1/0", "b1/0"])
        assert hops(made) == [("a0/0", "a1/0"), ("b0/0", "b1/0")]

    def test_a_leaf_with_too_few_sources_is_fed_from_the_front(self) -> None:
        topology = cluster(machine("s", 2), machine("b", leaf="l1"), machine("t", 2, leaf="l1"))
        made = plan(topology, ["s/0", "s/1", "b/0"], ["t/0", "t/1"])
        assert hops(made) == [("s/0", "t/0"), ("s/1", "t/1")]

    def test_a_leaf_without_sources_is_entered_once(self) -> None:
        topology = cluster(*singles(3, "a", "l0"), *singles(3, "b", "l1"))
        made = plan(topology, ["a0/0", "a1/0"], ["a2/0", "b0/0", "b1/0", "b2/0"])
        crossing = [(sender, receiver) for sender, receiver in hops(made) if sender[0] != receiver[0]]
        assert len(crossing) == 1


class TestLine8:
    def test_no_more_sources_than_the_targets_can_take_from(self) -> None:
        topology = cluster(machine("s", 4), machine("t", 2))
        made = plan(topology, ["s/0", "s/1", "s/2", "s/3"], ["t/0", "t/1"])
        assert hops(made) == [("s/0", "t/0"), ("s/1", "t/1")]

    def test_several_slow_sources_feed_one_fast_target(self) -> None:
        topology = cluster(*(machine(f"d{index}", disk=0.25) for index in range(4)), machine("t"))
        made = plan(topology, [], ["t/0"], disks=("d0", "d1", "d2", "d3"))
        assert [(flow.sender, flow.lane, flow.lanes) for flow in made.flows] == [
            ("d0", 0, 4), ("d1", 1, 4), ("d2", 2, 4), ("d3", 3, 4)
        ]  # fmt: skip

    def test_one_fast_host_feeds_several_gpus(self) -> None:
        topology = cluster(machine("s", host_nic=4.0), machine("t", 4))
        made = plan(topology, ["s"], [f"t/{index}" for index in range(4)])
        assert hops(made) == [("s", f"t/{index}") for index in range(4)]

    def test_all_there_is_where_that_is_not_enough(self) -> None:
        topology = cluster(machine("s", 2), machine("t", 4))
        made = plan(topology, ["s/0", "s/1"], [f"t/{index}" for index in range(4)])
        assert hops(made) == [("s/0", "t/0"), ("s/1", "t/1")]


class TestLines9And10:
    def test_targets_go_on_as_sources(self) -> None:
        made = plan(SIX, ["h0/0"], ["h1/0", "h2/0", "h3/0"])
        assert hops(made) == [("h0/0", "h1/0"), ("h1/0", "h2/0"), ("h2/0", "h3/0")]
        assert made.tails == ("h3/0",)

    def test_targets_come_in_front_of_the_sources_of_other_leaves(self) -> None:
        topology = cluster(*singles(1, "a", "l0"), *singles(1, "b", "l1"), *singles(2, "t", "l2"))
        made = plan(topology, ["a0/0", "b0/0"], ["t0/0", "t1/0"])
        assert hops(made) == [("a0/0", "t0/0"), ("t0/0", "t1/0")]

    def test_who_serving_sends_from_passes_nothing_on(self) -> None:
        made = plan(SIX, ["h0/0"], ["h1/0", "h2/0", "h3/0"], serving=(ServingFlow("h1/0", "out", 0.5),))
        assert hops(made) == [("h0/0", "h2/0"), ("h2/0", "h3/0"), ("h3/0", "h1/0")]

    def test_if_nobody_can_pass_on_the_source_sends_to_all(self) -> None:
        serving = tuple(ServingFlow(f"h{index}/0", "out", 0.5) for index in (1, 2))
        made = plan(SIX, ["h0/0"], ["h1/0", "h2/0"], serving=serving)
        assert hops(made) == [("h0/0", "h1/0"), ("h0/0", "h2/0")]
        assert made.tails == ("h1/0", "h2/0")

    def test_who_serving_sends_to_is_taken_last_and_named(self) -> None:
        serving = (ServingFlow("h1/0", "in", 0.5),)
        assert plan(SIX, ["h0/0"], ["h1/0", "h2/0"], count=1, serving=serving).targets == ("h2/0",)
        made = plan(SIX, ["h0/0"], ["h1/0", "h2/0"], serving=serving)
        assert made.targets == ("h2/0", "h1/0")
        assert made.reasons == ("there is none better than h1/0 (50% of its NIC in is taken)",)


class TestFig12:
    def test_two_sources_make_two_chains_and_both_tails_can_go_live(self) -> None:
        made = plan(SIX, ["h0/0", "h1/0"], ["h2/0", "h3/0"])
        assert hops(made) == [("h0/0", "h2/0"), ("h1/0", "h3/0")]
        assert made.tails == ("h2/0", "h3/0")

    def test_one_source_makes_one_chain_and_its_tail_can_go_live(self) -> None:
        assert plan(SIX, ["h0/0"], ["h2/0", "h3/0"]).tails == ("h3/0",)

    def test_chains_are_as_many_as_sources_and_about_as_long(self) -> None:
        topology = cluster(*singles(10))
        made = plan(topology, ["h0/0", "h1/0", "h2/0"], [f"h{index}/0" for index in range(3, 10)])
        assert len(made.tails) == 3
        assert sorted(lengths(made)) == [2, 2, 3]


class TestFig14:
    def test_four_gpus_send_a_quarter_each_and_the_domain_gathers(self) -> None:
        topology = cluster(machine("s", 4), machine("t", 4))
        made = plan(topology, [f"s/{index}" for index in range(4)], [f"t/{index}" for index in range(4)])
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
        made = plan(topology, ["s/0", "s/1"], ["t/0", "t/1", "u/0", "u/1"])
        assert hops(made) == [("s/0", "t/0"), ("s/1", "t/1"), ("t/0", "u/0"), ("t/1", "u/1")]
        assert made.tails == ("u/0", "u/1")


class TestNear:
    def test_a_copy_in_the_domain_needs_no_network_even_if_serving_uses_its_nic(self) -> None:
        topology = cluster(machine("s", 3), *singles(1))
        made = plan(topology, ["s/0"], ["s/1", "s/2"], serving=(ServingFlow("s/0", "out", 0.9),))
        assert hops(made, "domain") == [("s/0", "s/1"), ("s/1", "s/2")]
        assert hops(made) == []

    def test_of_several_copies_in_a_domain_the_one_that_serves_least_is_the_source(self) -> None:
        topology = cluster(machine("s", 4))
        made = plan(topology, ["s/0", "s/1", "s/2"], ["s/3"], serving=(ServingFlow("s/0", "out", 0.02),))
        assert hops(made, "domain") == [("s/1", "s/3")]
        busy = multicast_over(topology, BLOCKS, ["s/0", "s/1"], ["s/3"])
        sources = tuple(
            structs.replace(each, node=structs.replace(each.node, requests=2 - index))
            for index, each in enumerate(busy.sources)
        )
        assert hops(plan_chains(structs.replace(busy, sources=sources)), "domain") == [("s/1", "s/3")]

    def test_who_got_it_in_the_domain_sends_on_instead_of_a_busy_source(self) -> None:
        topology = cluster(machine("s", 2), *singles(1))
        made = plan(topology, ["s/0"], ["s/1", "h0/0"], serving=(ServingFlow("s/0", "out", 0.9),))
        assert hops(made) == [("s/1", "h0/0")]
        assert made.pruned == (("s/0", "out"),)

    def test_the_hosts_own_copy_goes_over_every_host_link_at_once(self) -> None:
        topology = cluster(machine("s", 4), *singles(1))
        made = plan(topology, ["s", "h0/0"], [f"s/{index}" for index in range(4)])
        assert hops(made, "host_link") == [("s", f"s/{index}") for index in range(4)]
        assert {flow.lanes for flow in made.flows} == {4}

    def test_the_network_is_used_where_it_is_faster_than_the_host_link(self) -> None:
        topology = cluster(machine("s", host_link=0.5), *singles(1))
        assert hops(plan(topology, ["s", "h0/0"], ["s/0"])) == [("h0/0", "s/0")]

    def test_gpus_of_one_host_without_a_domain_make_a_chain_through_its_memory(self) -> None:
        topology = cluster(machine("s", 3, joined=False))
        made = plan(topology, ["s/0"], ["s/1", "s/2"])
        assert hops(made, "host_link") == [("s/0", "s/1"), ("s/1", "s/2")]


class TestNearTraffic:
    """Serving traffic of links within domains and hosts, too."""

    SENDS = (ServingFlow("s/0", "out", 8.0, "domain"),)

    def test_of_two_copies_in_a_domain_the_one_that_serving_does_not_send_from_there(self) -> None:
        made = plan(cluster(machine("s", 3)), ["s/0", "s/1"], ["s/2"], serving=self.SENDS)
        assert hops(made, "domain") == [("s/1", "s/2")]

    def test_traffic_in_the_other_direction_does_not_matter(self) -> None:
        serving = (ServingFlow("s/0", "in", 8.0, "domain"), ServingFlow("s/2", "out", 8.0, "domain"))
        made = plan(cluster(machine("s", 3)), ["s/0"], ["s/2"], serving=serving)
        assert hops(made, "domain") == [("s/0", "s/2")]

    def test_instead_of_a_busy_copy_in_the_domain_the_hosts_own_or_one_over_the_network(self) -> None:
        topology = cluster(machine("s", 2), *singles(1))
        assert hops(plan(topology, ["s/0", "s"], ["s/1"], serving=self.SENDS), "host_link") == [("s", "s/1")]
        assert hops(plan(topology, ["s/0", "h0/0"], ["s/1"], serving=self.SENDS)) == [("h0/0", "s/1")]

    def test_a_busy_copy_within_the_leaf_is_no_reason_to_stay_there(self) -> None:
        topology = cluster(machine("s", 2), machine("far", leaf="l1"))
        assert hops(plan(topology, ["s/0", "far/0"], ["s/1"], serving=self.SENDS)) == [("far/0", "s/1")]

    def test_the_only_copy_is_kept_and_named(self) -> None:
        made = plan(cluster(machine("s", 2)), ["s/0"], ["s/1"], serving=self.SENDS)
        assert hops(made, "domain") == [("s/0", "s/1")]
        assert made.reasons == ("there is none better than s/0: serving sends near s/1, too",)

    def test_a_busy_link_to_the_hosts_memory_is_avoided_too(self) -> None:
        topology = cluster(machine("s", 3, joined=False))
        serving = (ServingFlow("s/0", "out", 0.5, "link"),)
        assert hops(plan(topology, ["s/0", "s/1"], ["s/2"], serving=serving), "host_link") == [("s/1", "s/2")]

    def test_a_domain_that_serving_uses_has_no_say_outside_of_it(self) -> None:
        made = plan(cluster(machine("s", 2), *singles(1)), ["s/0"], ["h0/0"], serving=self.SENDS)
        assert hops(made) == [("s/0", "h0/0")]
        assert made.reasons == ()


class TestHosts:
    """A host's memory can be a target: a copy in the pool is made anew."""

    def test_from_a_gpu_over_the_network(self) -> None:
        multicast = multicast_over(SIX, BLOCKS, ["h0/0"], ["h1"])
        made = plan_chains(multicast)
        check_plan(multicast, made)
        assert hops(made) == [("h0/0", "h1")]

    def test_from_a_gpu_of_its_own_over_the_host_link(self) -> None:
        multicast = multicast_over(SIX, BLOCKS, ["h0/0", "h1/0"], ["h1"])
        assert hops(plan_chains(multicast), "host_link") == [("h1/0", "h1")]

    def test_from_its_own_disk(self) -> None:
        multicast = multicast_over(SIX, BLOCKS, [], ["h1"], disks=["h1"])
        made = plan_chains(multicast)
        check_plan(multicast, made)
        assert hops(made, "disk") == [("h1", "h1")]


class TestParts:
    def test_what_nobody_has_whole_is_put_together_and_sent_on(self) -> None:
        multicast = parts(SIX, {"h0/0": {0, 1}, "h1/0": {2, 3}}, {"h2/0": EVERY, "h3/0": EVERY})
        made = plan_chains(multicast)
        check_plan(multicast, made)
        assert made.flows == (
            Flow("h0/0", "h2/0", (0, 1)),
            Flow("h1/0", "h2/0", (2, 3)),
            Flow("h2/0", "h3/0", EVERY),
        )

    def test_only_what_is_missing_is_sent(self) -> None:
        multicast = parts(SIX, {"h0/0": EVERY}, {"h1/0": (3,), "h2/0": (1, 2, 3)})
        made = plan_chains(multicast)
        check_plan(multicast, made)
        assert made.flows == (Flow("h0/0", "h1/0", (3,)), Flow("h1/0", "h2/0", (1, 2, 3)))

    def test_the_disk_gives_only_what_no_memory_has(self) -> None:
        multicast = parts(SIX, {"h0/0": {0, 1, 2}}, {"h1/0": EVERY}, disks=["h2"])
        assert plan_chains(multicast).flows == (Flow("h0/0", "h1/0", (0, 1, 2)), Flow("h2", "h1/0", (3,)))

    def test_two_that_were_cut_off_complete_each_other(self) -> None:
        multicast = parts(SIX, {"h1/0": {0, 1}, "h2/0": {2, 3}}, {"h1/0": (2, 3), "h2/0": (0, 1)})
        made = plan_chains(multicast)
        check_plan(multicast, made)
        assert made.flows == (Flow("h2/0", "h1/0", (2, 3)), Flow("h1/0", "h2/0", (0, 1)))

    def test_a_block_that_nobody_holds_is_named(self) -> None:
        with pytest.raises(CannotPlan, match="nobody holds blocks 2 of 4"):
            plan_chains(parts(SIX, {"h0/0": {0, 1, 3}}, {"h1/0": EVERY}))


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
    """How many targets each chain has."""
    upstream = {receiver: sender for sender, receiver in hops(plan)}

    def length(node: str) -> int:
        return 1 + length(upstream[node]) if node in upstream else 0

    return [length(tail) for tail in plan.tails]
