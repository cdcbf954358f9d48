"""What holds of the plans of every policy."""

from typing import get_args

import pytest
from hypothesis import given, settings

from livescale.services.planner.plans.make_plan import make_plan
from livescale.services.planner.plans.network import Multicast, multicast_over
from livescale.services.planner.plans.plan import CannotPlan, Policy
from livescale.services.planner.plans.predict import predict
from livescale.services.planner.plans.rates import Links
from tests.planner.plans.clusters import BLOCKS, cluster, multicasts, singles
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
