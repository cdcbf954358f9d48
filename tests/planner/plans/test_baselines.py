import itertools

import pytest

from livescale.services.planner.plans.baselines import plan_fanout, plan_local, plan_ring, plan_tree
from livescale.services.planner.plans.make_plan import predict
from livescale.services.planner.plans.plan import CannotPlan, multicast_over
from tests.planner.plans.clusters import BLOCKS, EVERY, cluster, hops, machine, parts, singles
from tests.planner.plans.plan_checks import check_plan

EIGHT = cluster(*singles(8))
TARGETS = [f"h{index}/0" for index in range(1, 8)]
COLD = ["h1", "h2", "h3", "h4", "h6"]  # hosts that have no copy in memory


def test_in_a_tree_everyone_sends_to_two() -> None:
    multicast = multicast_over(EIGHT, BLOCKS, ["h0/0"], TARGETS)
    plan = plan_tree(multicast)
    check_plan(multicast, plan)
    assert hops(plan) == [(f"h{(index - 1) // 2}/0", f"h{index}/0") for index in range(1, 8)]
    assert plan.tails == ("h4/0", "h5/0", "h6/0", "h7/0")


def test_several_sources_make_several_trees() -> None:
    plan = plan_tree(multicast_over(EIGHT, BLOCKS, ["h0/0", "h1/0"], TARGETS[1:]))
    assert [sender for sender, _ in hops(plan)] == ["h0/0", "h0/0", "h1/0", "h1/0", "h2/0", "h2/0"]


def test_a_fan_out_is_as_many_flows_as_targets() -> None:
    multicast = multicast_over(EIGHT, BLOCKS, ["h0/0"], TARGETS)
    plan = plan_fanout(multicast)
    check_plan(multicast, plan)
    assert hops(plan) == [("h0/0", target) for target in TARGETS]
    assert plan.tails == tuple(TARGETS)


def test_a_ring_goes_from_the_best_source_through_all_targets() -> None:
    multicast = multicast_over(EIGHT, BLOCKS, ["h0/0", "h1/0"], TARGETS[1:])
    plan = plan_ring(multicast)
    check_plan(multicast, plan)
    nodes = ["h0/0", *(f"h{index}/0" for index in range(2, 8))]
    assert hops(plan) == list(itertools.pairwise(nodes))
    assert plan.tails == ("h7/0",)
    assert plan.reasons == ("from h0/0",)


@pytest.mark.parametrize(("receivers", "tree", "fanout"), [(3, 2.0, 3.0), (7, 2.0, 7.0)])
def test_they_take_as_long_as_their_busiest_nic(receivers: int, tree: float, fanout: float) -> None:
    multicast = multicast_over(EIGHT, BLOCKS, ["h0/0"], TARGETS[:receivers])
    assert predict(multicast, plan_tree(multicast), 1).seconds == pytest.approx(tree * 400, rel=0.02)
    assert predict(multicast, plan_fanout(multicast), 1).seconds == pytest.approx(fanout * 400)


def test_a_model_that_no_node_has_whole_is_put_together_first() -> None:
    multicast = parts(EIGHT, {"h0/0": {0, 1}, "h1/0": {2, 3}}, {"h2/0": EVERY, "h3/0": EVERY})
    plan = plan_tree(multicast)
    check_plan(multicast, plan)
    assert hops(plan) == [("h0/0", "h2/0"), ("h1/0", "h2/0"), ("h2/0", "h3/0")]


def test_each_host_loads_from_its_memory_else_from_its_disk() -> None:
    multicast = multicast_over(EIGHT, BLOCKS, ["h0/0", "h1"], ["h1/0", "h2/0"], disks=["h1", "h2"])
    plan = plan_local(multicast)
    check_plan(multicast, plan)
    assert [(flow.sender, flow.receiver, flow.over) for flow in plan.flows] == [
        ("h1", "h1/0", "host_link"),
        ("h2", "h2/0", "disk"),
    ]


def test_locally_those_with_a_copy_in_memory_come_before_those_that_read_their_disk() -> None:
    multicast = multicast_over(EIGHT, BLOCKS, ["h5", "h7"], TARGETS, count=3, disks=COLD)
    assert [(flow.sender, flow.over) for flow in plan_local(multicast).flows] == [
        *(("h5", "host_link"), ("h7", "host_link"), ("h1", "disk"))
    ]


def test_a_disk_is_read_once_for_all_gpus_of_the_host() -> None:
    topology = cluster(machine("a", 2), machine("b", 2, joined=False))
    multicast = multicast_over(topology, BLOCKS, [], ["a/0", "a/1", "b/0", "b/1"], disks=["a", "b"])
    plan = plan_local(multicast)
    check_plan(multicast, plan)
    assert hops(plan, "disk") == [("a", "a/0"), ("b", "b/0")]
    assert hops(plan, "host_link") == [("b/0", "b/1")]


def test_hosts_without_a_copy_are_left_out_and_named() -> None:
    multicast = multicast_over(EIGHT, BLOCKS, ["h1"], ["h1/0", "h2/0"])
    plan = plan_local(multicast)
    assert plan.targets == ("h1/0",)
    assert plan.reasons[0] == "the hosts of h2/0 have no copy"


def test_without_any_local_copy_there_is_no_plan() -> None:
    with pytest.raises(CannotPlan, match="the hosts of h2/0 have no copy in memory or on disk"):
        plan_local(multicast_over(EIGHT, BLOCKS, ["h1/0"], ["h2/0"]))
