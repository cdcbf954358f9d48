import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.groups import choose_lanes
from livescale.services.planner.plans.plan import ServingFlow, multicast_over
from tests.planner.plans.clusters import BLOCKS, SIX, cluster, hops, machine, singles
from tests.planner.plans.plan_checks import check_plan, plan_checked_chains

RATES = st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=6).map(tuple)


@pytest.mark.parametrize(
    ("out", "into", "lanes"),
    [
        ((1.0,) * 4, (1.0,) * 4, 4),
        ((1.0,) * 2, (1.0,) * 4, 2),
        ((1.0,) * 4, (1.0,) * 2, 2),
        ((1.0,), (1.0,) * 4, 1),
        ((4.0,), (1.0,) * 4, 4),  # one host with a fast NIC
        ((0.25,) * 4, (1.0,), 4),  # disks
        ((0.9, 0.2), (1.0,), 1),  # an equal part for a slow one would hold up all
        ((float("inf"),), (2.0, 2.0), 2),  # a host's memory
    ],
)
def test_lanes_are_as_many_as_carry_most(out: tuple[float, ...], into: tuple[float, ...], lanes: int) -> None:
    assert choose_lanes(out, into) == lanes


@given(st.integers(1, 9), st.integers(1, 9))
def test_with_equal_rates_they_are_the_fewer_of_both(senders: int, receivers: int) -> None:
    assert choose_lanes((1.0,) * senders, (1.0,) * receivers) == min(senders, receivers)


@given(RATES, RATES)
def test_no_other_number_up_to_one_lane_an_end_carries_more(out: tuple[float, ...], into: tuple[float, ...]) -> None:
    def speed(lanes: int) -> float:
        ends = [*enumerate(out), *enumerate(into)]
        sides = [len(out)] * len(out) + [len(into)] * len(into)
        loads = [
            sum(lane % side == index for lane in range(lanes)) for (index, _), side in zip(ends, sides, strict=True)
        ]
        return lanes * min(rate / load for (_, rate), load in zip(ends, loads, strict=True) if load)

    assert speed(choose_lanes(out, into)) == pytest.approx(max(map(speed, range(1, max(len(out), len(into)) + 1))))


class TestNear:
    def test_a_copy_in_the_domain_needs_no_network_even_if_serving_uses_its_nic(self) -> None:
        topology = cluster(machine("s", 3), *singles(1))
        made = plan_checked_chains(topology, ["s/0"], ["s/1", "s/2"], serving=(ServingFlow("s/0", "out", 0.9),))
        assert hops(made, "domain") == [("s/0", "s/1"), ("s/1", "s/2")]
        assert hops(made) == []

    def test_the_copy_in_a_domain_that_serves_least_is_the_source(self) -> None:
        topology = cluster(machine("s", 4))
        made = plan_checked_chains(topology, ["s/0", "s/1", "s/2"], ["s/3"], serving=(ServingFlow("s/0", "out", 0.02),))
        assert hops(made, "domain") == [("s/1", "s/3")]
        busy = multicast_over(topology, BLOCKS, ["s/0", "s/1"], ["s/3"])
        sources = tuple(
            structs.replace(each, node=structs.replace(each.node, requests=2 - index))
            for index, each in enumerate(busy.sources)
        )
        assert hops(plan_chains(structs.replace(busy, sources=sources)), "domain") == [("s/1", "s/3")]

    def test_a_node_that_was_fed_in_the_domain_sends_on_instead_of_a_busy_source(self) -> None:
        topology = cluster(machine("s", 2), *singles(1))
        made = plan_checked_chains(topology, ["s/0"], ["s/1", "h0/0"], serving=(ServingFlow("s/0", "out", 0.9),))
        assert hops(made) == [("s/1", "h0/0")]
        assert made.pruned == (("s/0", "out"),)

    def test_the_hosts_own_copy_goes_over_every_host_link_at_once(self) -> None:
        topology = cluster(machine("s", 4), *singles(1))
        made = plan_checked_chains(topology, ["s", "h0/0"], [f"s/{index}" for index in range(4)])
        assert hops(made, "host_link") == [("s", f"s/{index}") for index in range(4)]
        assert {flow.lanes for flow in made.flows} == {4}

    def test_each_takes_all_of_the_hosts_own_copy_where_the_domain_is_no_faster(self) -> None:
        """Workers that are cores of one machine map it, and nothing has to be sent between them."""
        topology = cluster(machine("s", 3), scale_up=1.0)
        made = plan_checked_chains(topology, ["s"], [f"s/{index}" for index in range(3)])
        assert [(flow.sender, flow.receiver, flow.lanes) for flow in made.flows] == [
            ("s", f"s/{index}", 1) for index in range(3)
        ]

    def test_the_network_is_used_where_it_is_faster_than_the_host_link(self) -> None:
        topology = cluster(machine("s", host_link=0.5), *singles(1))
        assert hops(plan_checked_chains(topology, ["s", "h0/0"], ["s/0"])) == [("h0/0", "s/0")]

    def test_gpus_of_one_host_without_a_domain_make_a_chain_through_its_memory(self) -> None:
        topology = cluster(machine("s", 3, joined=False))
        made = plan_checked_chains(topology, ["s/0"], ["s/1", "s/2"])
        assert hops(made, "host_link") == [("s/0", "s/1"), ("s/1", "s/2")]


class TestNearTraffic:
    """Serving traffic of links within domains and hosts, too."""

    SENDS = (ServingFlow("s/0", "out", 8.0, "domain"),)

    def test_the_copy_in_a_domain_that_serving_does_not_send_from_is_the_source(self) -> None:
        made = plan_checked_chains(cluster(machine("s", 3)), ["s/0", "s/1"], ["s/2"], serving=self.SENDS)
        assert hops(made, "domain") == [("s/1", "s/2")]

    def test_traffic_in_the_other_direction_does_not_matter(self) -> None:
        serving = (ServingFlow("s/0", "in", 8.0, "domain"), ServingFlow("s/2", "out", 8.0, "domain"))
        made = plan_checked_chains(cluster(machine("s", 3)), ["s/0"], ["s/2"], serving=serving)
        assert hops(made, "domain") == [("s/0", "s/2")]

    def test_instead_of_a_busy_copy_in_the_domain_the_hosts_own_or_one_over_the_network(self) -> None:
        topology = cluster(machine("s", 2), *singles(1))
        assert hops(plan_checked_chains(topology, ["s/0", "s"], ["s/1"], serving=self.SENDS), "host_link") == [
            ("s", "s/1")
        ]
        assert hops(plan_checked_chains(topology, ["s/0", "h0/0"], ["s/1"], serving=self.SENDS)) == [("h0/0", "s/1")]

    def test_a_busy_copy_within_the_leaf_is_no_reason_to_stay_there(self) -> None:
        topology = cluster(machine("s", 2), machine("far", leaf="l1"))
        assert hops(plan_checked_chains(topology, ["s/0", "far/0"], ["s/1"], serving=self.SENDS)) == [("far/0", "s/1")]

    def test_the_only_copy_is_kept_and_named(self) -> None:
        made = plan_checked_chains(cluster(machine("s", 2)), ["s/0"], ["s/1"], serving=self.SENDS)
        assert hops(made, "domain") == [("s/0", "s/1")]
        assert made.reasons == ("there is none better than s/0: serving sends near s/1, too",)

    def test_a_busy_link_to_the_hosts_memory_is_avoided_too(self) -> None:
        topology = cluster(machine("s", 3, joined=False))
        serving = (ServingFlow("s/0", "out", 0.5, "link"),)
        assert hops(plan_checked_chains(topology, ["s/0", "s/1"], ["s/2"], serving=serving), "host_link") == [
            ("s/1", "s/2")
        ]

    def test_a_domain_that_serving_uses_has_no_say_outside_of_it(self) -> None:
        made = plan_checked_chains(cluster(machine("s", 2), *singles(1)), ["s/0"], ["h0/0"], serving=self.SENDS)
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
