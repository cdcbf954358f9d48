"""Transfer plans by the policy that is set, their sources, their predicted times, and what a scheduled block costs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.services.planner.fleet import ModelView
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.shard_planner import FIRST_SECONDS, BlockCost
from livescale.services.planner.targets import message_times
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import HostReport, LeaseChanged, PeerTraffic
from livescale.shared.messages.scaling import Phase, ScaleRecord
from livescale.shared.messages.transfers import Flow, Plan, PlannedInstance
from livescale.shared.runtime.settings import PolicyName
from tests.control.fakes import BLOCKS, manifest
from tests.planner.planning import hops, planned, planned_scale, scale_planner
from tests.planner.samples import (
    ENTRY,
    VERSION,
    acknowledge,
    block_ready,
    broken,
    decision,
    host,
    member,
    serving,
    snapshot,
    spare,
)


def test_each_host_loads_its_own_copy() -> None:
    made = planned("local", snapshot(host("host-0"), spare("a"), spare("b")), 2)
    assert hops(made)[0] == ("host-0", "a")
    assert {rank for instance in made.instances for rank in instance.ranks} == {"a", "b"}


def test_only_targets_whose_host_has_a_copy_are_loaded_from_hosts() -> None:
    members = [member("host-0"), member("a"), member("b", "another box")]
    made = planned("local", snapshot(host("host-0"), spare("a"), spare("b"), members=members), 2)
    assert [instance.ranks for instance in made.instances] == [["a"]]
    with pytest.raises(Refusal, match="the hosts of b have no copy in memory or on disk"):
        planned("local", snapshot(host("host-0"), spare("b"), members=[members[0], members[2]]), 1)


def test_a_host_without_a_copy_in_memory_reads_its_own_from_disk() -> None:
    empty = HostReport(id="host-1", epoch=1)
    members = [member("host-0"), member("a"), member("host-1", "other box"), member("b", "other box")]
    pool = snapshot(host("host-0"), empty, spare("a"), spare("b"), members=members)
    made = planned("local", pool, 2)
    found = {(flow.sender, flow.receiver, flow.from_disk) for flow in made.flows}
    assert found == {("host-0", "a", False), ("host-1", "b", True)}
    assert "from host-1: a host that reads the model from its disk" in made.reasons
    assert not any(flow.from_disk for flow in planned("chains", pool, 2).flows)


def test_with_a_link_rate_each_machine_loads_its_own_copy_through_its_host_s_one_link() -> None:
    members = [member("host-0"), member("a"), member("b"), member("host-1", "far"), member("c", "far")]
    pool = snapshot(host("host-0"), host("host-1"), *map(spare, "abc"), members=members)
    made = planned("local", pool, 3, link_rate=1e6)
    assert sorted(hops(made)) == [("host-0", "a"), ("host-0", "b"), ("host-1", "c")]
    assert made.predicted == pytest.approx({"a": 8.0, "b": 8.0, "c": 4.0})


def test_fanout_takes_every_byte_from_the_source() -> None:
    made = planned("fanout", snapshot(serving("s"), *map(spare, "abc")), 4)
    assert hops(made) == [("s", "a"), ("s", "b"), ("s", "c")]


def test_predicted_times_need_rates() -> None:
    pool = snapshot(serving("s"), *map(spare, "abc"))
    assert planned("chains", pool, 4).predicted == {}
    chain = planned("chains", pool, 4, link_rate=1e6).predicted
    fanout = planned("fanout", pool, 4, link_rate=1e6).predicted
    assert sorted(chain) == ["a", "b", "c"]
    assert 4.0 <= chain["a"] < chain["b"] < chain["c"]
    assert min(fanout.values()) == pytest.approx(12.0)


def test_times_are_predicted_by_block_unless_there_are_too_many() -> None:
    pool = snapshot(serving("s"), *map(spare, "abc"))
    few = planned("chains", pool, 4, link_rate=1e6)
    assert few.predicted_blocks["a"] == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert few.predicted == {target: blocks[-1] for target, blocks in few.predicted_blocks.items()}
    many = planned_scale(
        scale_planner("chains", 1e6)[0], snapshot(serving("s"), *map(spare, "abc")), 4, blocks=700
    ).plan
    assert sorted(many.predicted) == ["a", "b", "c"]
    assert many.predicted_blocks == {}


def dead(id: str) -> LeaseChanged:
    return LeaseChanged(service="worker", id=id, epoch=1, state="dead", reason="silent", at=3.0)


def test_times_are_predicted_anew_for_all_who_wait_for_a_lost_sender() -> None:
    planner, store = scale_planner("chains", 1e6)
    scale = planned_scale(planner, snapshot(serving("s"), *map(spare, "abc")), 4)
    store.add(scale)
    before = scale.plan.predicted_blocks
    acknowledge(scale, acknowledge(scale, scale.start(1.0), 1.0), 1.0)
    for worker in "abc":
        scale.on_block(replace(block_ready(worker, 0), plan_id=scale.id), 2.5)
    scale.on_lease(dead("s"), 3.0)
    receivers = [spare(id) for id in "abc"]
    view = ModelView(snapshot(serving("t"), *receivers), ENTRY, manifest(VERSION))
    planner.out.replan(scale, view, 3.0)
    after = scale.plan.predicted_blocks
    assert {worker: times[0] for worker, times in after.items()} == {id: before[id][0] for id in "abc"}
    assert after["a"][1:] == pytest.approx([3.0, 4.0, 5.0])
    assert 5.0 < scale.plan.predicted["b"] < scale.plan.predicted["c"] < 8.1


def test_targets_of_a_version_that_was_replaced_are_given_up_once_nobody_has_it() -> None:
    planner, store = scale_planner("chains", 1e6)
    scale = planned_scale(planner, snapshot(serving("s"), spare("a")), 2)
    store.add(scale)
    acknowledge(scale, acknowledge(scale, scale.start(1.0), 1.0), 1.0)
    scale.on_lease(dead("s"), 3.0)
    view = ModelView(snapshot(spare("a")), ENTRY, manifest(VERSION))
    with pytest.raises(Refusal, match="no worker or host has the whole model in memory"):
        planner.replan(scale, view, 3.0)
    assert scale.state == "loading"
    planner.replan(scale, view._replace(manifest=manifest("v-2")), 4.0)
    assert (scale.state, scale.ended) == ("failed", True)
    assert "and another version has taken its place" in scale.record().outcome


def test_targets_of_a_model_that_is_being_removed_are_given_up_once_nobody_has_it() -> None:
    planner, store = scale_planner("chains", 1e6)
    scale = planned_scale(planner, snapshot(serving("s"), spare("a")), 2)
    store.add(scale)
    acknowledge(scale, acknowledge(scale, scale.start(1.0), 1.0), 1.0)
    scale.on_lease(dead("s"), 3.0)
    planner.replan(scale, ModelView(snapshot(spare("a")), replace(ENTRY, state="removing"), manifest(VERSION)), 4.0)
    assert (scale.state, scale.ended) == ("failed", True)
    assert "and it is being removed" in scale.record().outcome


@given(st.sampled_from(["chains", "binomial", "tree", "fanout"]), st.sets(st.sampled_from("abcdefg")), st.data())
@settings(max_examples=25)
def test_the_rest_can_be_predicted_whichever_target_is_stranded(
    policy: PolicyName, lost: set[str], data: st.DataObject
) -> None:
    planner, store = scale_planner(policy, 1e6)
    pool = snapshot(serving("s"), host("host-0"), *map(spare, "abcdefg"))
    scale = planned_scale(planner, pool, 8)
    store.add(scale)
    acknowledge(scale, acknowledge(scale, scale.start(1.0), 1.0), 1.0)
    for worker in "abcdefg":
        for index in data.draw(st.sets(st.integers(0, BLOCKS - 1))):
            scale.on_block(replace(block_ready(worker, index), plan_id=scale.id), 2.0)
    for worker in sorted(lost):
        [flow, *_] = [flow for flow in scale.delivery.flows if flow.receiver == worker]
        scale.on_transfer(replace(broken(worker, flow.ticket), plan_id=scale.id), 2.0)
    made_anew = bool(scale.delivery.lacking)
    planner.out.replan(scale, ModelView(pool, ENTRY, manifest(VERSION)), 3.0)
    assert not scale.delivery.lacking
    for worker, times in scale.plan.predicted_blocks.items():
        late = [times[index] or 0.0 for index in scale.delivery.arrivals.missing(worker)]
        assert all(seconds > 0 for seconds in late)
        assert not made_anew or min(late, default=2.0) >= 2.0, "not before the plan was made anew"


def test_serving_keeps_its_nic_by_what_the_workers_measured() -> None:
    busy = serving("s", traffic=[PeerTraffic(peer=b"t", sent=0.4e6)])
    made = planned("chains", snapshot(busy, serving("t", running=9), spare("a")), 3, link_rate=1e6)
    assert hops(made) == [("t", "a")]
    assert "not from s (40% of its NIC out is taken)" in made.reasons


def test_a_worker_that_does_not_measure_serving_is_taken_by_its_role_and_that_is_said() -> None:
    unknown = serving("s", role="prefill", traffic=None)
    made = planned("chains", snapshot(unknown, serving("t", running=9), spare("a")), 3, link_rate=1e6)
    assert hops(made) == [("t", "a")]
    assert "not from s (100% of its NIC out is taken)" in made.reasons
    assert any(reason.startswith("the traffic of s is not known (it measures none)") for reason in made.reasons)


def steps(scale: ScaleOut) -> int:
    return 1 + max(step for flow in scale.plan.flows for step in flow.steps)


def carried_out(scale: ScaleOut, cost: float) -> ScaleRecord:
    """Every block came when it should, but for what each step cost more than was assumed."""
    plan = scale.plan
    longer = cost - plan.block_seconds
    arrived: dict[str, dict[int, float]] = {flow.receiver: {} for flow in plan.flows}
    for flow in plan.flows:
        for block, step in zip(flow.blocks, flow.steps, strict=True):
            arrived[flow.receiver][block] = 5.0 + (plan.predicted_blocks[flow.receiver][block] or 0.0) + step * longer
    return replace(scale.record(), state="done", arrived=message_times(arrived, 64))


def test_blocks_are_as_many_as_their_measured_cost_allows() -> None:
    """The elbow of LambdaScale 4.2: 64 blocks of 1 MB at 1 GB/s, to seven."""
    planner, _ = scale_planner("binomial", 1e9)
    pool = snapshot(serving("s"), *map(spare, "abcdefg"))
    first = planned_scale(planner, pool, 8, blocks=64)
    assert any("assumed, for nothing was measured yet" in reason for reason in first.plan.reasons)
    planner.out.learn(carried_out(first, cost=0.0001))
    cheap = planned_scale(planner, pool, 8, blocks=64)
    assert any("costs 0.1 ms besides its bytes: measured in 1 plan" in reason for reason in cheap.plan.reasons)
    for _ in range(12):
        planner.out.learn(carried_out(cheap, cost=0.02))
    dear = planned_scale(planner, pool, 8, blocks=64)
    assert steps(cheap) > steps(first) > steps(dear)
    assert cheap.plan.block_seconds < first.plan.block_seconds < dear.plan.block_seconds


def four_steps(cost: float, assumed: float = 0.005, once: float = 0.0) -> ScaleRecord:
    """Four blocks in four steps to `a`, which took `cost` each besides their 0.1 s, and something `once`."""
    plan = Plan(
        id="scale-1",
        model="m",
        version="v",
        instances=[PlannedInstance(id="i-a", ranks=["a"])],
        flows=[
            Flow(sender="s", receiver="a", ticket=1, blocks=[0, 2], steps=[0, 2]),
            Flow(sender="b", receiver="a", ticket=2, blocks=[1, 3], steps=[1, 3]),
        ],
        size_bytes=4,
        predicted_blocks={"a": [(block + 1) * (0.1 + assumed) for block in range(4)]},
        block_seconds=assumed,
    )
    arrived: list[float | None] = [50.0 + once + (block + 1) * (0.1 + cost) for block in range(4)]
    return ScaleRecord(id="scale-1", decision=decision(), state="done", plan=plan, arrived={"a": arrived})


def learned(*records: ScaleRecord) -> BlockCost:
    cost = BlockCost()
    for record in records:
        cost.learn(record)
    return cost


def test_before_anything_was_measured_a_cost_is_assumed_and_said_to_be() -> None:
    assert learned().seconds == FIRST_SECONDS
    assert learned().reason == "a block costs 5 ms besides its bytes: assumed, for nothing was measured yet"


@pytest.mark.parametrize("cost", [0.0, 0.002, 0.03])
@pytest.mark.parametrize("assumed", [0.0, 0.005])
def test_the_cost_is_what_each_step_took_besides_its_bytes(cost: float, assumed: float) -> None:
    assert learned(four_steps(cost, assumed)).seconds == pytest.approx(cost)


def test_what_comes_once_is_no_part_of_it() -> None:
    assert learned(four_steps(0.002, once=3.0)).seconds == pytest.approx(0.002)


def test_it_moves_with_every_plan() -> None:
    cost = learned(four_steps(0.01), four_steps(0.02))
    assert 0.01 < cost.seconds < 0.02
    assert cost.reason.endswith("measured in 2 plans")


def test_faster_than_the_bytes_is_no_negative_cost() -> None:
    assert learned(four_steps(-0.05)).seconds == 0.0


def test_a_plan_that_failed_or_was_made_anew_or_has_no_schedule_or_no_times_says_nothing() -> None:
    record = four_steps(0.03)
    assert record.plan is not None
    chain = replace(record.plan, flows=[Flow(sender="s", receiver="a", ticket=1)])
    useless = [
        replace(record, state="failed"),
        replace(record, phases=[Phase(name="replanned", at=1.0, node="a")]),
        replace(record, plan=chain),
        replace(record, plan=None),
        replace(record, plan=replace(record.plan, predicted_blocks={})),
        replace(record, arrived={"a": [50.1, 50.2, None, None]}),
    ]
    assert learned(*useless).seconds == FIRST_SECONDS
