"""When blocks get through flows that forward each other's chunks: by recursion, by simulation and in closed form."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.flow_times import LEAST_SHARE, find_upstream, forward, in_order
from livescale.services.planner.plans.make_plan import Prediction, collect_ready, follow_lines, simulate
from livescale.services.planner.plans.plan import Multicast, ServingFlow, TransferFlow, TransferPlan, multicast_over
from tests.planner.plans.clusters import (
    BLOCKS,
    CHUNK,
    EVERY,
    chain_plan,
    cluster,
    flows_by_link,
    machine,
    multicasts,
    plan_of,
    singles,
)


def test_flows_that_wait_for_each_other_have_no_order() -> None:
    flows = [TransferFlow("a", "b", EVERY), TransferFlow("b", "a", EVERY)]
    with pytest.raises(ValueError, match="flows wait for each other"):
        in_order(find_upstream(flows))


def in_every_way(multicast: Multicast, plan: TransferPlan) -> list[Prediction]:
    """Compute the times by recursion, by simulation, and in closed form."""
    return [
        collect_ready(plan, forward(multicast, plan.flows, CHUNK)),
        collect_ready(plan, simulate(multicast, plan.flows, CHUNK)),
        follow_lines(multicast, plan, CHUNK),
    ]


@pytest.mark.parametrize("receivers", [1, 3, 7])
def test_a_chain_takes_bytes_by_rate_and_a_chunk_a_hop(receivers: int) -> None:
    multicast, plan = chain_plan(cluster(*singles(8)), *(f"h{index}/0" for index in range(receivers + 1)))
    for prediction in in_every_way(multicast, plan):
        assert prediction.seconds == pytest.approx(400 + (receivers - 1) * 10)
        assert prediction.ready["h1/0"] == pytest.approx({0: 100, 1: 200, 2: 300, 3: 400})


def test_a_sender_shares_its_nic_between_its_flows() -> None:
    topology = cluster(*singles(4))
    multicast = multicast_over(topology, BLOCKS, ["h0/0"], ["h1/0", "h2/0", "h3/0"])
    plan = plan_of(multicast, *(TransferFlow("h0/0", f"h{index}/0", EVERY) for index in (1, 2, 3)))
    for prediction in in_every_way(multicast, plan):
        assert prediction.seconds == pytest.approx(1200)


@given(multicasts(partial=False))
@settings(max_examples=50)
def test_all_ways_agree_but_for_chunks_where_no_shares_change(multicast: Multicast) -> None:
    plan = plan_chains(multicast)
    forwarded, simulated, drawn = in_every_way(multicast, plan)
    slowest = min(0.5, *(source.node.bandwidth for source in multicast.sources))
    lags = 2 * CHUNK / slowest * len(plan.flows)
    assert simulated.seconds <= forwarded.seconds + lags
    assert drawn.seconds == pytest.approx(forwarded.seconds, abs=lags)
    if all(len(used) < 2 for used in flows_by_link(multicast, plan).values()):
        assert simulated.seconds == pytest.approx(forwarded.seconds, abs=lags)


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=2, max_size=12))
def test_in_a_chain_of_any_rates_all_ways_agree_to_a_chunk(rates: list[float]) -> None:
    hosts = [machine(f"h{index}", nic=rate) for index, rate in enumerate(rates)]
    multicast, plan = chain_plan(cluster(*hosts), *(f"h{index}/0" for index in range(len(rates))))
    forwarded, simulated, drawn = in_every_way(multicast, plan)
    slowest = CHUNK / min(rates)
    for target in plan.targets:
        assert drawn.whole(target) == pytest.approx(forwarded.whole(target))
        assert simulated.whole(target) == pytest.approx(forwarded.whole(target), abs=slowest)
        for block in EVERY:
            assert drawn.ready[target][block] == pytest.approx(forwarded.ready[target][block], abs=slowest)


def test_hops_behind_a_slow_one_run_at_its_rate() -> None:
    topology = cluster(machine("s"), machine("slow", nic=0.5), machine("t"))
    for prediction in in_every_way(*chain_plan(topology, "s/0", "slow/0", "t/0")):
        assert prediction.whole("slow/0") == pytest.approx(800)
        assert prediction.whole("t/0") == pytest.approx(800 + 10 / 0.5)


def test_leaves_with_a_thin_uplink_share_it() -> None:
    topology = cluster(*singles(2, "a", "l0"), *singles(2, "b", "l1"), uplink=0.5)
    multicast = multicast_over(topology, BLOCKS, ["a0/0", "a1/0"], ["b0/0", "b1/0"])
    plan = plan_of(multicast, TransferFlow("a0/0", "b0/0", EVERY), TransferFlow("a1/0", "b1/0", EVERY))
    for prediction in in_every_way(multicast, plan):
        assert prediction.seconds == pytest.approx(1600)


def test_lanes_divide_the_time_and_the_domain_adds_little() -> None:
    """Fig. 14: four lanes, a quarter of the time."""
    topology = cluster(machine("s", 4), machine("t", 4), scale_up=100.0)
    multicast = multicast_over(topology, BLOCKS, [f"s/{i}" for i in range(4)], [f"t/{i}" for i in range(4)])
    for prediction in in_every_way(multicast, plan_chains(multicast)):
        assert 100 <= prediction.seconds <= 101


def test_parameters_have_what_serving_leaves() -> None:
    serving = (ServingFlow("h0/0", "out", 0.2), ServingFlow("h1/0", "out", 0.6), ServingFlow("h2/0", "out", 7.0))
    multicast, plan = chain_plan(cluster(*singles(4)), *(f"h{index}/0" for index in range(4)))
    multicast = structs.replace(multicast, serving=serving)
    for prediction in in_every_way(multicast, plan):
        assert prediction.whole("h1/0") == pytest.approx(400 / 0.8)
        assert prediction.whole("h2/0") == pytest.approx(400 / 0.4, rel=0.03)
        assert prediction.whole("h3/0") == pytest.approx(400 / LEAST_SHARE, rel=0.03)


def test_within_a_domain_too() -> None:
    topology = cluster(machine("s", 2), scale_up=20.0)
    multicast = multicast_over(topology, BLOCKS, ["s/0"], ["s/1"], serving=[ServingFlow("s/1", "in", 15.0, "domain")])
    for prediction in in_every_way(multicast, plan_chains(multicast)):
        assert prediction.whole("s/1") == pytest.approx(400 / 5.0)
