"""Predicted times against what can be worked out by hand, and against each other."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.fluid import simulate
from livescale.services.planner.plans.forwarding import forward
from livescale.services.planner.plans.network import Multicast, ServingFlow, multicast_over
from livescale.services.planner.plans.plan import Flow, TransferPlan
from livescale.services.planner.plans.predict import Prediction, collect_ready, follow_lines, predict
from livescale.services.planner.plans.rates import LEAST_SHARE, Links
from livescale.shared.topology.topology import Topology
from tests.planner.plans.made import BLOCKS, EVERY, cluster, machine, multicasts, parts, singles

CHUNK = 10


def made(multicast: Multicast, *flows: Flow) -> TransferPlan:
    targets = tuple(target.node.id for target in multicast.targets)
    return TransferPlan(policy="fanout", flows=flows, targets=targets, tails=())


def chain(topology: Topology, *nodes: str) -> tuple[Multicast, TransferPlan]:
    multicast = multicast_over(topology, BLOCKS, nodes[:1], nodes[1:])
    return multicast, made(multicast, *(Flow(sender, receiver, EVERY) for sender, receiver in pairwise(nodes)))


def in_every_way(multicast: Multicast, plan: TransferPlan) -> list[Prediction]:
    """By recursion, by simulation, and in closed form."""
    return [
        collect_ready(plan, forward(multicast, plan.flows, CHUNK)),
        collect_ready(plan, simulate(multicast, plan.flows, CHUNK)),
        follow_lines(multicast, plan, CHUNK),
    ]


@pytest.mark.parametrize("receivers", [1, 3, 7])
def test_a_chain_takes_bytes_by_rate_and_a_chunk_a_hop(receivers: int) -> None:
    multicast, plan = chain(cluster(*singles(8)), *(f"h{index}/0" for index in range(receivers + 1)))
    for prediction in in_every_way(multicast, plan):
        assert prediction.seconds == pytest.approx(400 + (receivers - 1) * 10)
        assert prediction.ready["h1/0"] == pytest.approx({0: 100, 1: 200, 2: 300, 3: 400})


def test_hops_behind_a_slow_one_run_at_its_rate() -> None:
    topology = cluster(machine("s"), machine("slow", nic=0.5), machine("t"))
    for prediction in in_every_way(*chain(topology, "s/0", "slow/0", "t/0")):
        assert prediction.whole("slow/0") == pytest.approx(800)
        assert prediction.whole("t/0") == pytest.approx(800 + 10 / 0.5)


def test_the_order_of_a_chain_matters_to_who_is_fast() -> None:
    """Fig. 13 (b): S -> T2 -> T1 has T2 down for half the time of S -> T1 -> T2."""
    topology = cluster(machine("s", nic=2.0), machine("t1"), machine("t2", nic=2.0))
    assert predict(*chain(topology, "s/0", "t2/0", "t1/0"), CHUNK).whole("t2/0") == pytest.approx(200)
    assert predict(*chain(topology, "s/0", "t1/0", "t2/0"), CHUNK).whole("t2/0") == pytest.approx(410)


def test_a_sender_shares_its_nic_between_its_flows() -> None:
    topology = cluster(*singles(4))
    multicast = multicast_over(topology, BLOCKS, ["h0/0"], ["h1/0", "h2/0", "h3/0"])
    plan = made(multicast, *(Flow("h0/0", f"h{index}/0", EVERY) for index in (1, 2, 3)))
    for prediction in in_every_way(multicast, plan):
        assert prediction.seconds == pytest.approx(1200)


def test_who_is_through_leaves_its_share_to_the_others() -> None:
    topology = cluster(*singles(3))
    multicast = parts(topology, {"h0/0": EVERY}, {"h1/0": (0,), "h2/0": EVERY})
    plan = made(multicast, Flow("h0/0", "h1/0", (0,)), Flow("h0/0", "h2/0", EVERY))
    prediction = predict(multicast, plan, CHUNK)
    assert prediction.ready == {
        "h1/0": {0: pytest.approx(200)},
        "h2/0": pytest.approx({0: 200, 1: 300, 2: 400, 3: 500}),
    }


def test_leaves_with_a_thin_uplink_share_it() -> None:
    topology = cluster(*singles(2, "a", "l0"), *singles(2, "b", "l1"), uplink=0.5)
    multicast = multicast_over(topology, BLOCKS, ["a0/0", "a1/0"], ["b0/0", "b1/0"])
    plan = made(multicast, Flow("a0/0", "b0/0", EVERY), Flow("a1/0", "b1/0", EVERY))
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
    multicast, plan = chain(cluster(*singles(4)), *(f"h{index}/0" for index in range(4)))
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


def test_a_disk_is_as_fast_as_it_reads() -> None:
    topology = cluster(machine("s", disk=0.25), machine("t"))
    multicast = multicast_over(topology, BLOCKS, [], ["s/0", "t/0"], disks=["s"])
    prediction = predict(multicast, plan_chains(multicast), CHUNK)
    assert prediction.whole("s/0") == pytest.approx(1600)
    assert prediction.whole("t/0") == pytest.approx(1610)


def test_a_schedule_takes_its_steps() -> None:
    multicast = multicast_over(cluster(*singles(3)), BLOCKS, ["h0/0"], ["h1/0", "h2/0"])
    plan = made(
        multicast,
        Flow("h0/0", "h1/0", (0, 2), steps=(0, 2)),
        Flow("h0/0", "h2/0", (1, 3), steps=(1, 3)),
        Flow("h1/0", "h2/0", (0, 2), steps=(2, 4)),
        Flow("h2/0", "h1/0", (1, 3), steps=(3, 4)),
    )
    prediction = predict(multicast, plan, CHUNK, block_seconds=1)
    assert prediction.ready["h2/0"] == {0: 303, 1: 202, 2: 505, 3: 404}


@given(multicasts(partial=False))
@settings(max_examples=50)
def test_all_ways_agree_but_for_chunks_where_no_shares_change(multicast: Multicast) -> None:
    plan = plan_chains(multicast)
    forwarded, simulated, drawn = in_every_way(multicast, plan)
    slowest = min(0.5, *(source.node.bandwidth for source in multicast.sources))
    lags = 2 * CHUNK / slowest * len(plan.flows)
    assert simulated.seconds <= forwarded.seconds + lags
    assert drawn.seconds == pytest.approx(forwarded.seconds, abs=lags)
    if all(len(used) < 2 for used in links_of(multicast, plan).values()):
        assert simulated.seconds == pytest.approx(forwarded.seconds, abs=lags)


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=2, max_size=12))
def test_in_a_chain_of_any_rates_all_ways_agree_to_a_chunk(rates: list[float]) -> None:
    hosts = [machine(f"h{index}", nic=rate) for index, rate in enumerate(rates)]
    multicast, plan = chain(cluster(*hosts), *(f"h{index}/0" for index in range(len(rates))))
    forwarded, simulated, drawn = in_every_way(multicast, plan)
    slowest = CHUNK / min(rates)
    for target in plan.targets:
        assert drawn.whole(target) == pytest.approx(forwarded.whole(target))
        assert simulated.whole(target) == pytest.approx(forwarded.whole(target), abs=slowest)
        for block in EVERY:
            assert drawn.ready[target][block] == pytest.approx(forwarded.ready[target][block], abs=slowest)


@given(multicasts())
@settings(max_examples=50)
def test_nothing_is_faster_than_its_bytes_by_the_rate(multicast: Multicast) -> None:
    plan = plan_chains(multicast)
    prediction = predict(multicast, plan, CHUNK)
    for (rate, _), flows in links_of(multicast, plan).items():
        sent = sum(multicast.block_bytes[block] / flow.lanes for flow in flows for block in flow.blocks)
        assert prediction.seconds >= sent / rate * (1 - 1e-6)


@given(st.integers(1, 40), st.sampled_from([1, 4, 10]))
def test_more_targets_in_a_chain_cost_a_chunk_each(receivers: int, chunk_bytes: int) -> None:
    topology = cluster(*singles(receivers + 2))
    nodes = [f"h{index}/0" for index in range(receivers + 2)]

    def takes(targets: list[str]) -> float:
        multicast = multicast_over(topology, BLOCKS, nodes[:1], targets)
        return predict(multicast, plan_chains(multicast), chunk_bytes).seconds

    assert takes(nodes[1:]) == pytest.approx(takes(nodes[1:-1]) + chunk_bytes)


def links_of(multicast: Multicast, plan: TransferPlan) -> dict[tuple[float, int], list[Flow]]:
    """The flows of each link, which is named by its rate and its number."""
    links = Links(plan.flows, multicast)
    users: dict[tuple[float, int], list[Flow]] = {}
    for flow, used in zip(plan.flows, links.used_by, strict=True):
        for link in used:
            users.setdefault((links.capacity[link], link), []).append(flow)
    return users
