"""What holds of the plans of every policy."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.flow_times import Links
from livescale.services.planner.plans.make_plan import make_plan, predict
from livescale.services.planner.plans.plan import CannotPlan, Multicast, Policy, TransferFlow, multicast_over
from tests.planner.plans.clusters import (
    BLOCKS,
    CHUNK,
    EVERY,
    chain_plan,
    cluster,
    flows_by_link,
    machine,
    multicasts,
    parts,
    plan_of,
    singles,
)
from tests.planner.plans.plan_checks import check_plan

POLICIES = get_args(Policy)


@pytest.mark.parametrize("policy", POLICIES)
@given(multicasts())
@settings(max_examples=40)
def test_there_is_a_plan_whenever_there_can_be_one(policy: Policy, multicast: Multicast) -> None:
    try:
        plan = make_plan(policy, multicast)
    except CannotPlan:
        assert policy == "local"
        assert not copies_of_their_own(multicast)
        return
    check_plan(multicast, plan)
    assert plan.policy == policy
    assert len(plan.targets) == multicast.wanted or policy == "local"


def copies_of_their_own(multicast: Multicast) -> set[str]:
    """Targets whose host has the model in its memory or on its disk."""
    needed = frozenset().union(*(target.missing for target in multicast.targets))
    holders = [source.node for source in multicast.sources if source.blocks >= needed]
    machines = {node.machine for node in holders if node.place != "worker"}
    return {target.node.id for target in multicast.targets if target.node.machine in machines}


@pytest.mark.parametrize("policy", POLICIES)
@given(multicasts())
@settings(max_examples=40)
def test_no_link_carries_more_than_it_can(policy: Policy, multicast: Multicast) -> None:
    try:
        plan = make_plan(policy, multicast)
    except CannotPlan:
        return
    seconds = predict(multicast, plan, 10).seconds
    links = Links(plan.flows, multicast)
    carried = [0.0] * len(links.capacity)
    for flow, used in zip(plan.flows, links.used_by, strict=True):
        for link in used:
            carried[link] += sum(multicast.block_bytes[block] for block in flow.blocks) / flow.lanes
    for sent, capacity in zip(carried, links.capacity, strict=True):
        assert seconds >= sent / capacity * (1 - 1e-6)


@pytest.mark.parametrize("policy", POLICIES)
def test_without_targets_there_is_no_plan(policy: Policy) -> None:
    with pytest.raises(CannotPlan, match="there is no target"):
        make_plan(policy, multicast_over(cluster(*singles(2)), BLOCKS, ["h0/0"], []))


@pytest.mark.parametrize("policy", POLICIES)
def test_without_a_source_there_is_no_plan(policy: Policy) -> None:
    with pytest.raises(CannotPlan, match=r"no node holds blocks 0, 1, 2, 3 of 4"):
        make_plan(policy, multicast_over(cluster(*singles(2)), BLOCKS, [], ["h0/0"]))


def test_the_order_of_a_chain_matters_to_who_is_fast() -> None:
    """Fig. 13 (b): S -> T2 -> T1 has T2 down for half the time of S -> T1 -> T2."""
    topology = cluster(machine("s", nic=2.0), machine("t1"), machine("t2", nic=2.0))
    assert predict(*chain_plan(topology, "s/0", "t2/0", "t1/0"), CHUNK).whole("t2/0") == pytest.approx(200)
    assert predict(*chain_plan(topology, "s/0", "t1/0", "t2/0"), CHUNK).whole("t2/0") == pytest.approx(410)


def test_a_disk_is_as_fast_as_it_reads() -> None:
    topology = cluster(machine("s", disk=0.25), machine("t"))
    multicast = multicast_over(topology, BLOCKS, [], ["s/0", "t/0"], disks=["s"])
    prediction = predict(multicast, plan_chains(multicast), CHUNK)
    assert prediction.whole("s/0") == pytest.approx(1600)
    assert prediction.whole("t/0") == pytest.approx(1610)


def test_a_schedule_takes_its_steps() -> None:
    multicast = multicast_over(cluster(*singles(3)), BLOCKS, ["h0/0"], ["h1/0", "h2/0"])
    plan = plan_of(
        multicast,
        TransferFlow("h0/0", "h1/0", (0, 2), steps=(0, 2)),
        TransferFlow("h0/0", "h2/0", (1, 3), steps=(1, 3)),
        TransferFlow("h1/0", "h2/0", (0, 2), steps=(2, 4)),
        TransferFlow("h2/0", "h1/0", (1, 3), steps=(3, 4)),
    )
    prediction = predict(multicast, plan, CHUNK, block_seconds=1)
    assert prediction.ready["h2/0"] == {0: 303, 1: 202, 2: 505, 3: 404}


@given(multicasts())
@settings(max_examples=50)
def test_nothing_is_faster_than_its_bytes_by_the_rate(multicast: Multicast) -> None:
    plan = plan_chains(multicast)
    prediction = predict(multicast, plan, CHUNK)
    for (rate, _), flows in flows_by_link(multicast, plan).items():
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


def test_a_flow_that_is_through_leaves_its_share_to_the_others() -> None:
    topology = cluster(*singles(3))
    multicast = parts(topology, {"h0/0": EVERY}, {"h1/0": (0,), "h2/0": EVERY})
    plan = plan_of(multicast, TransferFlow("h0/0", "h1/0", (0,)), TransferFlow("h0/0", "h2/0", EVERY))
    prediction = predict(multicast, plan, CHUNK)
    assert prediction.ready == {
        "h1/0": {0: pytest.approx(200)},
        "h2/0": pytest.approx({0: 200, 1: 300, 2: 400, 3: 500}),
    }
