"""Plans by the policy that is set. How they are carried out is tested with the control plane."""

from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.services.planner.book import Book
from livescale.services.planner.drafts import Drafts
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.settings import PlannerSettings
from livescale.services.planner.times import told
from livescale.services.planner.view import View
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Holding, HostReport, LeaseChanged, PeerTraffic, WorkerReport
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import Snapshot
from livescale.shared.messages.scaling import Decision, Scale, ScaleRecord
from livescale.shared.messages.transfers import LiveMode, Load, Plan, PlannedPipeline, Send, Transfer
from livescale.shared.runtime.clock import CountedIds
from livescale.shared.runtime.settings import LiveWhen, PolicyName
from tests.control.fakes import BLOCKS, manifest
from tests.planner.made import (
    ENTRY,
    SIZE,
    VERSION,
    acknowledge,
    block_ready,
    broken,
    decision,
    host,
    loading,
    member,
    serving,
    snapshot,
    spare,
)


def drafting(policy: PolicyName, link_rate: float = 0.0) -> tuple[Drafts, Book]:
    book = Book(1)
    return Drafts(CountedIds(), PlannerSettings(plan_policy=policy, link_rate=link_rate), book, None), book


def live(book: Book, *, every_hop: bool = False, when: LiveWhen = "always", link_rate: float = 1e6) -> Drafts:
    told = PlannerSettings(live="zigzag", live_every_hop=every_hop, live_when=when, link_rate=link_rate)
    return Drafts(CountedIds(), told, book, None)


def drafted(
    drafts: Drafts, picture: Snapshot, instances: int, blocks: int = BLOCKS, decision: Decision | None = None
) -> ScaleOut:
    whole = manifest(VERSION)
    view = View(picture, ENTRY, replace(whole, blocks=[replace(whole.blocks[0], index=i) for i in range(blocks)]))
    asked = Scale(model="m", instances=instances, decision=decision)
    scale = drafts.scale(asked, view, drafts.count("m", view), at=1.0)
    assert isinstance(scale, ScaleOut)
    return scale


def planned(policy: PolicyName, picture: Snapshot, instances: int, link_rate: float = 0.0) -> Plan:
    return drafted(drafting(policy, link_rate)[0], picture, instances).plan


def hops(plan: Plan) -> list[tuple[str, str]]:
    return [(flow.sender, flow.receiver) for flow in plan.flows]


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
    picture = snapshot(host("host-0"), empty, spare("a"), spare("b"), members=members)
    made = planned("local", picture, 2)
    found = {(flow.sender, flow.receiver, flow.from_disk) for flow in made.flows}
    assert found == {("host-0", "a", False), ("host-1", "b", True)}
    assert "from host-1: a host that reads the model from its disk" in made.reasons
    assert not any(flow.from_disk for flow in planned("chains", picture, 2).flows)


def test_with_a_link_rate_each_machine_loads_its_own_copy_through_its_host_s_one_link() -> None:
    members = [member("host-0"), member("a"), member("b"), member("host-1", "far"), member("c", "far")]
    picture = snapshot(host("host-0"), host("host-1"), *map(spare, "abc"), members=members)
    made = planned("local", picture, 3, link_rate=1e6)
    assert sorted(hops(made)) == [("host-0", "a"), ("host-0", "b"), ("host-1", "c")]
    assert made.predicted == pytest.approx({"a": 8.0, "b": 8.0, "c": 4.0})


def test_fanout_takes_every_byte_from_the_source() -> None:
    made = planned("fanout", snapshot(serving("s"), *map(spare, "abc")), 4)
    assert hops(made) == [("s", "a"), ("s", "b"), ("s", "c")]


def test_predicted_times_need_rates() -> None:
    picture = snapshot(serving("s"), *map(spare, "abc"))
    assert planned("chains", picture, 4).predicted == {}
    chain = planned("chains", picture, 4, link_rate=1e6).predicted
    fanout = planned("fanout", picture, 4, link_rate=1e6).predicted
    assert sorted(chain) == ["a", "b", "c"]
    assert 4.0 <= chain["a"] < chain["b"] < chain["c"]
    assert min(fanout.values()) == pytest.approx(12.0)


def test_times_are_predicted_by_block_unless_there_are_too_many() -> None:
    picture = snapshot(serving("s"), *map(spare, "abc"))
    few = planned("chains", picture, 4, link_rate=1e6)
    assert few.predicted_blocks["a"] == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert few.predicted == {target: blocks[-1] for target, blocks in few.predicted_blocks.items()}
    many = drafted(drafting("chains", 1e6)[0], snapshot(serving("s"), *map(spare, "abc")), 4, blocks=700).plan
    assert sorted(many.predicted) == ["a", "b", "c"]
    assert many.predicted_blocks == {}


def dead(id: str) -> LeaseChanged:
    return LeaseChanged(service="worker", id=id, epoch=1, state="dead", reason="silent", at=3.0)


def test_times_are_predicted_anew_for_all_who_wait_for_a_lost_sender() -> None:
    drafts, book = drafting("chains", 1e6)
    scale = drafted(drafts, snapshot(serving("s"), *map(spare, "abc")), 4)
    book.add(scale)
    before = scale.plan.predicted_blocks
    acknowledge(scale, acknowledge(scale, scale.start(1.0), 1.0), 1.0)
    for worker in "abc":
        scale.on_block(replace(block_ready(worker, 0), plan_id=scale.id), 2.5)
    scale.on_lease(dead("s"), 3.0)
    receivers = [spare(id) for id in "abc"]
    view = View(snapshot(serving("t"), *receivers), ENTRY, manifest(VERSION))
    drafts.replan(scale, view, 3.0)
    after = scale.plan.predicted_blocks
    assert {worker: times[0] for worker, times in after.items()} == {id: before[id][0] for id in "abc"}
    assert after["a"][1:] == pytest.approx([3.0, 4.0, 5.0])
    assert 5.0 < scale.plan.predicted["b"] < scale.plan.predicted["c"] < 8.1


@given(st.sampled_from(["chains", "binomial", "tree", "fanout"]), st.sets(st.sampled_from("abcdefg")), st.data())
@settings(max_examples=25)
def test_whoever_is_stranded_the_rest_can_be_predicted(policy: PolicyName, lost: set[str], data: st.DataObject) -> None:
    drafts, book = drafting(policy, 1e6)
    picture = snapshot(serving("s"), host("host-0"), *map(spare, "abcdefg"))
    scale = drafted(drafts, picture, 8)
    book.add(scale)
    acknowledge(scale, acknowledge(scale, scale.start(1.0), 1.0), 1.0)
    for worker in "abcdefg":
        for index in data.draw(st.sets(st.integers(0, BLOCKS - 1))):
            scale.on_block(replace(block_ready(worker, index), plan_id=scale.id), 2.0)
    for worker in sorted(lost):
        [flow, *_] = [flow for flow in scale.delivery.flows if flow.receiver == worker]
        scale.on_transfer(replace(broken(worker, flow.ticket), plan_id=scale.id), 2.0)
    made_anew = bool(scale.delivery.lacking)
    drafts.replan(scale, View(picture, ENTRY, manifest(VERSION)), 3.0)
    assert not scale.delivery.lacking
    for worker, times in scale.plan.predicted_blocks.items():
        late = [times[index] or 0.0 for index in scale.delivery.times.missing(worker)]
        assert all(seconds > 0 for seconds in late)
        assert not made_anew or min(late, default=2.0) >= 2.0, "not before the plan was made anew"


def test_serving_keeps_its_nic_by_what_the_workers_measured() -> None:
    busy = serving("s", traffic=[PeerTraffic(peer=b"t", sent=0.4e6)])
    made = planned("chains", snapshot(busy, serving("t", running=9), spare("a")), 3, link_rate=1e6)
    assert hops(made) == [("t", "a")]
    assert "not from s (40% of its NIC out is taken)" in made.reasons


def test_who_does_not_say_what_serving_moves_is_taken_by_its_role_and_that_is_said() -> None:
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
    return replace(scale.record(), state="done", arrived=told(arrived, 64))


def test_blocks_are_as_many_as_their_measured_cost_allows() -> None:
    """The elbow of LambdaScale 4.2: 64 blocks of 1 MB at 1 GB/s, to seven."""
    drafts, _ = drafting("binomial", 1e9)
    picture = snapshot(serving("s"), *map(spare, "abcdefg"))
    first = drafted(drafts, picture, 8, blocks=64)
    assert any("assumed, for nothing was measured yet" in reason for reason in first.plan.reasons)
    drafts.learn(carried_out(first, cost=0.0001))
    cheap = drafted(drafts, picture, 8, blocks=64)
    assert any("costs 0.1 ms besides its bytes: measured in 1 plan" in reason for reason in cheap.plan.reasons)
    for _ in range(12):
        drafts.learn(carried_out(cheap, cost=0.02))
    dear = drafted(drafts, picture, 8, blocks=64)
    assert steps(cheap) > steps(first) > steps(dear)
    assert cheap.plan.block_seconds < first.plan.block_seconds < dear.plan.block_seconds


def test_who_received_first_from_whom_is_a_tree_also_where_steps_have_everybody_exchange() -> None:
    made = planned("binomial", snapshot(serving("s"), *map(spare, "abc")), 4, link_rate=1e6)
    assert all(path[0] == "s" for path in made.paths)
    assert {node for path in made.paths for node in path} == {"s", "a", "b", "c"}


def test_the_last_of_each_chain_goes_live_where_that_is_set() -> None:
    picture = snapshot(serving("s"), *map(spare, "abc"))
    stopping = Drafts(CountedIds(), PlannerSettings(live="off", link_rate=1e6), Book(1), None)
    off = drafted(stopping, picture, 4).plan
    assert (off.live, off.live_targets) == ("off", [])
    tails = drafted(live(Book(1)), picture, 4).plan
    assert (tails.live, tails.live_targets) == ("zigzag", ["c"])
    assert "c run requests from their first layer on, in the mode zigzag: they send nothing on" in tails.reasons
    assert drafted(live(Book(1), every_hop=True), picture, 4).plan.live_targets == ["a", "b", "c"]


@pytest.mark.parametrize(("link_rate", "live_targets"), [(1e9, []), (1e3, ["c"]), (0.0, ["a", "b", "c"])])
def test_by_need_targets_go_live_where_links_are_slow_or_not_known(link_rate: float, live_targets: list[str]) -> None:
    inputs = {"waiting_tokens": 900.0, "arriving_tokens_per_second": 2000.0, "prefill_tokens_per_second": 1000.0}
    asked = replace(decision(), inputs={**inputs, "waiting_requests": 9.0, "instances": 1.0, "loading": 0.0})
    drafts = live(Book(1), when="needed", link_rate=link_rate)
    plan = drafted(drafts, snapshot(serving("s"), *map(spare, "abc")), 4, decision=asked).plan
    assert plan.live_targets == live_targets
    assert any("nobody is live" in reason for reason in plan.reasons) is not bool(live_targets)
    assert any("they are live" in reason for reason in plan.reasons) is bool(live_targets)


def in_pipelines(link_rate: float = 1e6) -> Drafts:
    return Drafts(CountedIds(), PlannerSettings(live="pipeline", link_rate=link_rate), Book(1), None)


def test_in_the_mode_pipeline_targets_are_to_serve_as_soon_as_they_have_all_between_them() -> None:
    from_one = drafted(in_pipelines(), snapshot(serving("s"), *map(spare, "abc")), 4, blocks=8).plan
    assert [one.members for one in from_one.pipelines] == [["a", "b", "c"]]
    assert (from_one.live, from_one.live_targets) == ("pipeline", ["a", "b", "c"])
    from_two = drafted(in_pipelines(), snapshot(serving("s"), serving("t"), *map(spare, "abcd")), 6, blocks=8).plan
    assert [one.members for one in from_two.pipelines] == [["a", "c"], ["b", "d"]]
    assert all(one.predicted is not None for one in (*from_one.pipelines, *from_two.pipelines))
    [first], second = from_one.pipelines, from_two.pipelines[0]
    assert (first.predicted or 0) > (second.predicted or 0), "the more sources the sooner"
    assert "these serve as soon as they have all between them: a, c; b, d" in from_two.reasons


def test_without_rates_it_is_not_known_when_a_pipeline_is_ready_and_one_target_alone_makes_none() -> None:
    apart = [member(id, f"box-{id}") for id in "sab"]
    picture = snapshot(serving("s"), *map(spare, "ab"), members=apart)
    assert drafted(in_pipelines(0.0), picture, 3).plan.pipelines == [PlannedPipeline(members=["a", "b"])]
    alone = drafted(in_pipelines(), picture, 2).plan
    assert (alone.pipelines, alone.live_targets) == ([], [])


def test_a_policy_that_makes_no_pipelines_is_refused_with_the_mode_that_needs_them() -> None:
    with pytest.raises(ValueError, match="leave --plan-policy out, or choose binomial"):
        PlannerSettings(live="pipeline", plan_policy="chains")
    assert PlannerSettings().policy_for("pipeline") == "binomial"
    assert PlannerSettings().policy_for("zigzag") == "chains"
    assert PlannerSettings(plan_policy="tree").policy_for("zigzag") == "tree"


def test_a_scale_by_hand_may_be_in_the_mode_pipeline_where_plans_make_some() -> None:
    picture = snapshot(serving("s"), *map(spare, "abc"))
    asked = Scale(model="m", instances=4, live="pipeline")
    for policy, refused in (("auto", False), ("chains", True)):
        drafts, _ = drafting(policy, 1e6)  # type: ignore[arg-type]
        view = View(picture, ENTRY, manifest(VERSION))
        with pytest.raises(Refusal, match="choose binomial") if refused else nullcontext():
            scale = drafts.scale(asked, view, drafts.count("m", view), at=1.0)
            assert isinstance(scale, ScaleOut)
            assert scale.plan.live == "pipeline"
            assert scale.plan.pipelines


def test_who_is_live_is_no_source_of_a_second_scale() -> None:
    book = Book(1)
    drafts = live(book)
    first = drafted(drafts, snapshot(serving("s"), spare("a"), spare("b")), 2)
    book.add(first)
    acknowledge(first, first.start(1.0))
    assert book.live() == {"a"}
    report = replace(loading("a", 2, "live"), epoch=1, instance=first.instances[0])
    second = drafted(drafts, snapshot(serving("s"), report, spare("b")), 3)
    assert hops(second.plan) == [("s", "b")]
    first.on_lease(LeaseChanged(service="worker", id="a", epoch=1, state="dead", reason="silent", at=2.0), 2.0)
    assert book.live() == frozenset()


CUT = replace(ENTRY, spec=replace(ENTRY.spec, tensor_parallel_size=2))


def cut_manifest() -> Manifest:
    one = manifest(VERSION)
    config = replace(one.config, num_attention_heads=2, num_key_value_heads=2)
    return replace(one, config=config, shards=2, blocks=[replace(one.blocks[0], index=i) for i in range(2 * BLOCKS)])


def drafted_for_ranks(picture: Snapshot, instances: int, mode: LiveMode = "off") -> ScaleOut:
    book = Book(1)
    drafts = Drafts(CountedIds(), PlannerSettings(link_rate=1e6, live=mode), book, None)
    view = View(picture, CUT, cut_manifest())
    scale = drafts.scale(Scale(model="m", instances=instances), view, drafts.count("m", view), at=1.0)
    assert isinstance(scale, ScaleOut)
    return scale


def whole_host(id: str) -> HostReport:
    ready = list(range(2 * BLOCKS))
    return HostReport(
        id=id, epoch=1, holdings=[Holding(model="m", version=VERSION, ready=ready, total=len(ready), size_bytes=SIZE)]
    )


def rank_of_one(id: str, rank: int) -> WorkerReport:
    held = Holding(model="m", version=cut_manifest().of_shard(rank).held_as, ready=list(range(BLOCKS)), total=BLOCKS)
    return serving(id, instance="i-1", rank=rank, holding=held)


def test_each_rank_of_an_instance_gets_its_shard_from_who_has_that() -> None:
    scale = drafted_for_ranks(snapshot(whole_host("host-0"), *map(spare, "abcd")), 2)
    assert [instance.ranks for instance in scale.plan.instances] == [["a", "b"], ["c", "d"]]
    assert set(hops(scale.plan)) == {("host-0", "a"), ("a", "c"), ("host-0", "b"), ("b", "d")}
    loads = {command.node: command.message for command in scale.start(1.0)}
    for rank, worker in enumerate("abcd"):
        load = loads[worker]
        assert isinstance(load, Load)
        assert (load.rank, load.manifest) == (rank % 2, cut_manifest().of_shard(rank % 2))
        assert load.ranks == (["a", "b"] if worker in "ab" else ["c", "d"])


def test_a_host_is_told_of_each_shard_that_it_sends() -> None:
    scale = drafted_for_ranks(snapshot(whole_host("host-0"), *map(spare, "ab")), 1)
    loads = scale.start(1.0)
    sends = [command for load in loads for command in scale.acknowledged(load, 1.0)]
    shards = {one.message.shard: one.message for one in sends if isinstance(one.message, Send)}
    assert [one.node for one in sends] == ["host-0", "host-0"]
    assert [shards[rank].outflows[0].downstream.id for rank in (0, 1)] == ["a", "b"]


def test_workers_that_serve_give_the_shards_that_they_have() -> None:
    picture = snapshot(rank_of_one("x", 0), rank_of_one("y", 1), *map(spare, "ab"))
    assert set(hops(drafted_for_ranks(picture, 2).plan)) == {("x", "a"), ("y", "b")}
    alone = snapshot(rank_of_one("x", 0), *map(spare, "ab"))
    with pytest.raises(Refusal, match="no worker or host holds the whole model in memory"):
        drafted_for_ranks(alone, 2)


def test_an_instance_of_several_workers_is_live_by_its_first_and_serves_once_every_rank_is_whole() -> None:
    scale = drafted_for_ranks(snapshot(whole_host("host-0"), *map(spare, "ab")), 1, mode="zigzag")
    assert (scale.plan.live_targets, scale.live) == (["a"], {"a", "b"})
    loads = scale.start(1.0)
    assert [load.message.live for load in loads if isinstance(load.message, Load)] == ["zigzag", "zigzag"]
    for command in loads:
        scale.acknowledged(command, 1.0)
    assert scale.on_transfer(Transfer(plan_id=scale.id, node="b", state="whole", at=2.0), 2.0) == []
    serves = scale.on_transfer(Transfer(plan_id=scale.id, node="a", state="whole", at=2.0), 2.0)
    assert [(one.node, type(one.message).__name__) for one in serves] == [("a", "Serve"), ("b", "Serve")]


@pytest.mark.parametrize("sources", [1, 2])
def test_the_plans_of_all_ranks_make_the_same_pipelines(sources: int) -> None:
    """Whatever the names, also where the ranks of one machine do not follow each other."""
    workers = [f"worker-{number}" for number in (12, 7, 9, 10, 3, 11, 8, 2)]
    picture = snapshot(*(whole_host(f"host-{number}") for number in range(sources)), *map(spare, workers))
    plan = drafted_for_ranks(picture, 4, mode="pipeline").plan
    members = [one.members for one in plan.pipelines]
    assert list(map(len, members)) == [4 // sources] * sources
    assert sorted(worker for one in members for worker in one) == sorted(one.ranks[0] for one in plan.instances)
    assert plan.live_targets == [worker for one in members for worker in one]


def test_a_rank_that_lost_its_source_gets_the_rest_of_its_own_shard() -> None:
    picture = snapshot(rank_of_one("x", 0), rank_of_one("y", 1), whole_host("host-0"), *map(spare, "ab"))
    drafts, _ = drafting("chains")
    scale = drafted_for_ranks(picture, 2)
    for command in scale.start(1.0):
        scale.acknowledged(command, 1.0)
    dead = LeaseChanged(service="worker", id="y", epoch=1, state="dead", reason="silent", at=2.0)
    scale.on_lease(dead, 2.0)
    left = snapshot(rank_of_one("x", 0), whole_host("host-0"), *map(spare, "ab"))
    again = [command.message for command in drafts.replan(scale, View(left, CUT, cut_manifest()), 3.0)]
    assert [(load.rank, load.inflows[0].upstream.id) for load in again if isinstance(load, Load)] == [(1, "host-0")]
