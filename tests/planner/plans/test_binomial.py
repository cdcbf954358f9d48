"""LambdaScale's multicast, with its examples."""

from collections.abc import Iterator
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from livescale.services.planner.plans.binomial import (
    choose_count,
    choose_sub_groups,
    group_blocks,
    plan_binomial,
    transfer_order,
)
from livescale.services.planner.plans.execution_pipelines import pipeline_ready
from livescale.services.planner.plans.make_plan import predict
from livescale.services.planner.plans.plan import Multicast, ServingFlow, TransferFlow, TransferPlan, multicast_over
from tests.planner.plans.clusters import BLOCKS, EVERY, cluster, hops, machine, parts, singles
from tests.planner.plans.plan_checks import check_plan


def over_singles(sources: int, targets: int, sizes: tuple[int, ...] = BLOCKS) -> Multicast:
    ids = [f"n{index + 1}/0" for index in range(sources + targets)]
    topology = cluster(*(machine(id.removesuffix("/0")) for id in ids))
    return multicast_over(topology, sizes, ids[:sources], ids[sources:])


def last_step(plan: TransferPlan) -> int:
    return max(step for flow in plan.flows for step in flow.steps)


class TestFig5:
    multicast = over_singles(2, 6)
    plan = plan_binomial(multicast, blocks=4)

    def test_three_pipelines_go_across_both_sub_groups(self) -> None:
        assert self.plan.pipelines == (("n3/0", "n6/0"), ("n4/0", "n7/0"), ("n5/0", "n8/0"))

    def test_each_sub_group_begins_with_another_half(self) -> None:
        for root, first_blocks in (("n1/0", [0, 1]), ("n2/0", [2, 3])):
            sent = [(step, block) for flow in self.plan.flows if flow.sender == root for step, block in _steps(flow)]
            assert [block for _, block in sorted(sent)][:2] == first_blocks

    def test_a_sub_group_of_four_takes_five_steps_for_four_blocks(self) -> None:
        assert last_step(self.plan) + 1 == 4 + 2 - 1

    def test_pipelines_are_ready_before_any_node_is_whole(self) -> None:
        prediction = predict(self.multicast, self.plan, 10)
        assert min(pipeline_ready(pipeline, prediction.ready) for pipeline in self.plan.pipelines) < min(
            prediction.whole(target) for target in self.plan.targets
        )


@pytest.mark.parametrize("ways", [2, 3, 4])
def test_where_each_node_has_a_source_of_its_own_they_are_a_pipeline_long_before_they_are_whole(ways: int) -> None:
    """No node has to pass blocks on, for which one block would do; but each begins with another part."""
    multicast = over_singles(ways, ways, (100,) * 16)
    plan = plan_binomial(multicast)
    prediction = predict(multicast, plan, 10)
    [pipeline] = plan.pipelines
    whole = min(prediction.whole(target) for target in plan.targets)
    assert pipeline_ready(pipeline, prediction.ready) <= whole * ceil(16 / ways) / 16 * 1.01


@given(st.integers(1, 6), st.integers(1, 14), st.integers(1, 16))
@settings(max_examples=60)
def test_steps_are_as_many_as_the_largest_sub_group_needs(sources: int, targets: int, blocks: int) -> None:
    multicast = over_singles(sources, targets, (100,) * 16)
    plan = plan_binomial(multicast, blocks=blocks)
    check_plan(multicast, plan)
    used = choose_sub_groups(targets, sources)
    largest = 1 + ceil(targets / used)
    assert last_step(plan) + 1 == blocks + ceil(log2(largest)) - 1


@given(st.integers(1, 4), st.integers(4, 12), st.integers(1, 16))
@settings(max_examples=60)
def test_the_blocks_exist_collectively_after_their_share_of_steps(sources: int, targets: int, blocks: int) -> None:
    plan = plan_binomial(over_singles(sources, targets, (100,) * blocks), sources=sources, blocks=blocks)
    used = choose_sub_groups(targets, sources)
    there = {block for flow in plan.flows for step, block in _steps(flow) if step < ceil(blocks / used)}
    assert there == set(range(blocks))


@pytest.mark.parametrize(
    ("targets", "most", "used"),
    [
        (6, 2, 2),
        (7, 4, 4),  # as many steps as with fewer; none divides 7
        (6, 4, 3),  # L = 3 as with 4, and equal
        (2, 8, 2),  # a sub-group has a target
        (8, 1, 1),
        (12, 4, 4),
    ],
)
def test_sub_groups_of_equal_size_are_preferred_among_the_fastest(targets: int, most: int, used: int) -> None:
    assert choose_sub_groups(targets, most) == used


def test_no_more_sources_than_asked_for() -> None:
    plan = plan_binomial(over_singles(4, 8), sources=2)
    assert {sender for sender, _ in hops(plan)} & {"n1/0", "n2/0", "n3/0", "n4/0"} == {"n1/0", "n2/0"}


def test_the_circular_shift() -> None:
    """LambdaScale 4.2, Algorithm 1."""
    assert [transfer_order([1, 2, 3, 4], 2, number) for number in range(2)] == [[1, 2, 3, 4], [3, 4, 1, 2]]
    assert [transfer_order([1, 2, 3, 4, 5], 3, number) for number in range(3)] == [
        [1, 2, 3, 4, 5], [3, 4, 5, 1, 2], [5, 1, 2, 3, 4]
    ]  # fmt: skip
    assert transfer_order([1, 2], 4, 3) == [1, 2]


def test_blocks_of_the_model_go_in_runs_when_there_are_more_than_wanted() -> None:
    multicast = over_singles(1, 1, (100,) * 8)
    [flow] = plan_binomial(multicast, blocks=4).flows
    assert flow.blocks == tuple(range(8))
    assert flow.steps == (0, 0, 1, 1, 2, 2, 3, 3)


def test_a_block_that_costs_more_makes_fewer() -> None:
    multicast = over_singles(1, 7, (100,) * 64)
    cheap, dear = (plan_binomial(multicast, block_seconds=seconds) for seconds in (0.0, 200.0))
    assert last_step(cheap) > last_step(dear)


def test_a_sub_group_is_within_a_leaf_where_it_can() -> None:
    topology = cluster(*singles(4, "a", "l0"), *singles(4, "b", "l1"))
    targets = [f"{leaf}{index}/0" for leaf in "ba" for index in (1, 2, 3)]
    plan = plan_binomial(multicast_over(topology, BLOCKS, ["a0/0", "b0/0"], targets))
    assert all(sender[0] == receiver[0] for sender, receiver in hops(plan))


def test_one_gpu_of_a_domain_takes_part_and_the_others_follow() -> None:
    topology = cluster(machine("s", 2), machine("t", 4), machine("u", 4))
    multicast = multicast_over(topology, BLOCKS, ["s/0"], [f"{host}/{i}" for host in "tu" for i in range(4)])
    plan = plan_binomial(multicast)
    check_plan(multicast, plan)
    assert {receiver for _, receiver in hops(plan)} == {"t/0", "u/0"}
    assert len(hops(plan, "domain")) == 6
    prediction = predict(multicast, plan, 10)
    assert prediction.whole("t/3") < prediction.whole("t/0") + 20


def test_nodes_that_follow_in_the_domain_get_blocks_in_the_order_of_arrival() -> None:
    topology = cluster(machine("s"), machine("r"), machine("t", 2), machine("u", 2))
    multicast = multicast_over(topology, BLOCKS, ["s/0", "r/0"], ["t/0", "t/1", "u/0", "u/1"])
    plan = plan_binomial(multicast, blocks=4)
    orders = {flow.receiver: flow.blocks for flow in plan.flows}
    assert orders == {"t/0": EVERY, "t/1": EVERY, "u/0": (2, 3, 0, 1), "u/1": (2, 3, 0, 1)}


def test_nodes_that_follow_in_a_domain_make_pipelines_across_domains_of_their_own() -> None:
    """LambdaScale 4.3, case 3, Fig. 6(c)."""
    topology = cluster(*(machine(name) for name in "sr"), *(machine(name, 2) for name in "tu"))
    targets = ["t/0", "t/1", "u/0", "u/1"]
    both = plan_binomial(multicast_over(topology, BLOCKS, ["s/0", "r/0"], targets))
    assert both.pipelines == (("t/0", "u/0"), ("t/1", "u/1"))
    one = plan_binomial(multicast_over(topology, BLOCKS, ["s/0"], targets))
    assert one.pipelines == (("t/0", "u/0"), ("t/1", "u/1"))


def test_a_host_that_feeds_its_gpus_in_lanes_has_each_of_them_in_one_pipeline() -> None:
    topology = cluster(machine("t", 2), machine("u", 2))
    targets = ["t/0", "t/1", "u/0", "u/1"]
    plan = plan_binomial(multicast_over(topology, BLOCKS, ["t", "u"], targets))
    assert any(flow.lanes > 1 for flow in plan.flows)
    assert plan.pipelines == (("t/0", "u/0"), ("t/1", "u/1"))


def test_serving_is_avoided_where_it_can_be() -> None:
    multicast = over_singles(2, 2)
    serving = (ServingFlow("n1/0", "out", 0.5), ServingFlow("n3/0", "in", 0.5))
    plan = plan_binomial(structs.replace(multicast, serving=serving, count=1))
    assert hops(plan) == [("n2/0", "n4/0")]


def test_a_model_that_no_node_has_whole_is_put_together_at_a_node_that_becomes_the_source() -> None:
    multicast = parts(cluster(*singles(6)), {"h0/0": {0, 1}, "h1/0": {2, 3}}, {f"h{i}/0": EVERY for i in (2, 3, 4)})
    plan = plan_binomial(multicast)
    check_plan(multicast, plan)
    assert plan.flows[0].receiver == plan.flows[1].receiver == "h2/0"
    assert predict(multicast, plan, 10).whole("h3/0") > predict(multicast, plan, 10).whole("h2/0")


def test_a_node_gets_only_what_it_misses() -> None:
    multicast = parts(cluster(*singles(4)), {"h0/0": EVERY}, {"h1/0": (1, 2), "h2/0": EVERY, "h3/0": (3,)})
    plan = plan_binomial(multicast)
    check_plan(multicast, plan)


class TestWarmStart:
    """LambdaScale 5: every host has a copy of its own in its memory."""

    topology = cluster(*(machine(f"h{index}", 2, host_link=2.0) for index in range(4)))
    multicast = multicast_over(
        topology, BLOCKS, [f"h{i}" for i in range(4)], [f"h{i}/{g}" for i in range(4) for g in (0, 1)]
    )
    plan = plan_binomial(multicast)

    def test_hosts_begin_with_different_parts(self) -> None:
        check_plan(self.multicast, self.plan)
        first = {flow.sender: flow.blocks[0] for flow in self.plan.flows if flow.over == "host_link"}
        assert first == {"h0": 0, "h1": 1, "h2": 2, "h3": 3}

    def test_together_they_have_the_model_long_before_each_has(self) -> None:
        prediction = predict(self.multicast, self.plan, 10)
        assert self.plan.pipelines == tuple(tuple(f"h{host}/{gpu}" for host in range(4)) for gpu in (0, 1))
        assert all(pipeline_ready(nodes, prediction.ready) < prediction.seconds / 3 for nodes in self.plan.pipelines)


def _steps(flow: TransferFlow) -> Iterator[tuple[int, int]]:
    return zip(flow.steps, flow.blocks, strict=True)


@pytest.mark.parametrize(
    ("sizes", "count", "runs"),
    [
        ([1, 1, 1, 1], 2, [(0, 1), (2, 3)]),
        ([1, 1, 1, 1], 4, [(0,), (1,), (2,), (3,)]),
        ([4, 1, 1, 1, 1], 2, [(0,), (1, 2, 3, 4)]),
        ([1, 1, 1, 1, 4], 2, [(0, 1, 2, 3), (4,)]),
        ([1, 1], 5, [(0,), (1,)]),
        ([1, 9, 1], 3, [(0,), (1,), (2,)]),
    ],
)
def test_runs_have_about_equal_bytes(sizes: list[int], count: int, runs: list[tuple[int, ...]]) -> None:
    assert group_blocks(sizes, count) == runs


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 70))
def test_every_block_is_in_one_run_in_order_and_no_run_is_empty(sizes: list[int], count: int) -> None:
    runs = group_blocks(sizes, count)
    assert len(runs) == min(count, len(sizes))
    assert all(runs)
    assert [block for run in runs for block in run] == list(range(len(sizes)))


def test_the_elbow_is_where_more_blocks_hardly_help() -> None:
    """A block that costs nothing is cut off where little is left to win; one that costs, near the minimum or before."""
    free = choose_count(2, 1.0, 0.0, 64)
    assert 20 <= free < 64
    costly = choose_count(2, 1.0, 0.008, 64)
    assert costly < 16
    assert choose_count(0, 1.0, 0.001, 64) == 1


@given(st.integers(0, 8), st.floats(0.01, 100), st.floats(0, 0.1), st.integers(1, 64))
def test_no_other_number_is_much_better(besides: int, seconds: float, block_seconds: float, most: int) -> None:
    def takes(blocks: int) -> float:
        return (blocks + besides) * (seconds / blocks + block_seconds)

    chosen = choose_count(besides, seconds, block_seconds, most)
    assert takes(chosen) <= 1.03 * min(takes(blocks) for blocks in range(1, most + 1))
