"""Plans by the policy that is set. How they are carried out is tested with the control plane."""

from contextlib import nullcontext

import pytest
from msgspec.structs import replace

from livescale.services.planner.fleet import ModelView
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.scale_planner import ScalePlanner
from livescale.services.planner.settings import PlannerSettings
from livescale.services.planner.store import ScaleStore
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Holding, HostReport, LeaseChanged, WorkerReport
from livescale.shared.messages.model_spec import Disaggregation
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import Snapshot
from livescale.shared.messages.scaling import Scale, ScaleRecord
from livescale.shared.messages.transfers import LiveMode, Load, PlannedPipeline, Send, Serve, Transfer
from livescale.shared.runtime.clock import CountedIds
from tests.control.fakes import BLOCKS, manifest
from tests.planner.planning import hops, live_planner, planned, planned_scale, scale_planner
from tests.planner.samples import (
    ENTRY,
    SIZE,
    VERSION,
    acknowledge,
    decision,
    loading,
    member,
    serving,
    snapshot,
    spare,
    transfer,
)


def test_first_receipts_form_a_tree_also_where_all_nodes_exchange() -> None:
    made = planned("binomial", snapshot(serving("s"), *map(spare, "abc")), 4, link_rate=1e6)
    assert all(path[0] == "s" for path in made.paths)
    assert {node for path in made.paths for node in path} == {"s", "a", "b", "c"}


def test_the_last_of_each_chain_goes_live_where_that_is_set() -> None:
    pool = snapshot(serving("s"), *map(spare, "abc"))
    stopping = ScalePlanner(CountedIds(), PlannerSettings(live="off", link_rate=1e6), ScaleStore(1), None)
    off = planned_scale(stopping, pool, 4).plan
    assert (off.live, off.live_targets) == ("off", [])
    tails = planned_scale(live_planner(ScaleStore(1)), pool, 4).plan
    assert (tails.live, tails.live_targets) == ("zigzag", ["c"])
    assert (
        "requests run at c from the first layer on, in the mode zigzag: nothing is sent on from there" in tails.reasons
    )
    assert planned_scale(live_planner(ScaleStore(1), every_hop=True), pool, 4).plan.live_targets == ["a", "b", "c"]


@pytest.mark.parametrize(("link_rate", "live_targets"), [(1e9, []), (1e3, ["c"]), (0.0, ["a", "b", "c"])])
def test_by_need_targets_go_live_where_links_are_slow_or_not_known(link_rate: float, live_targets: list[str]) -> None:
    inputs = {"waiting_tokens": 900.0, "arriving_tokens_per_second": 2000.0, "prefill_tokens_per_second": 1000.0}
    asked = replace(decision(), inputs={**inputs, "waiting_requests": 9.0, "instances": 1.0, "loading": 0.0})
    planner = live_planner(ScaleStore(1), when="needed", link_rate=link_rate)
    plan = planned_scale(planner, snapshot(serving("s"), *map(spare, "abc")), 4, decision=asked).plan
    assert plan.live_targets == live_targets
    assert any("no target is live" in reason for reason in plan.reasons) is not bool(live_targets)
    assert any("they are live" in reason for reason in plan.reasons) is bool(live_targets)


def in_pipelines(link_rate: float = 1e6) -> ScalePlanner:
    return ScalePlanner(CountedIds(), PlannerSettings(live="pipeline", link_rate=link_rate), ScaleStore(1), None)


def test_in_the_mode_pipeline_targets_are_to_serve_as_soon_as_they_have_all_between_them() -> None:
    from_one = planned_scale(in_pipelines(), snapshot(serving("s"), *map(spare, "abc")), 4, blocks=8).plan
    assert [one.members for one in from_one.pipelines] == [["a", "b", "c"]]
    assert (from_one.live, from_one.live_targets) == ("pipeline", ["a", "b", "c"])
    from_two = planned_scale(
        in_pipelines(), snapshot(serving("s"), serving("t"), *map(spare, "abcd")), 6, blocks=8
    ).plan
    assert [one.members for one in from_two.pipelines] == [["a", "c"], ["b", "d"]]
    assert all(one.predicted is not None for one in (*from_one.pipelines, *from_two.pipelines))
    [first], second = from_one.pipelines, from_two.pipelines[0]
    assert (first.predicted or 0) > (second.predicted or 0), "the more sources the sooner"
    assert "these serve as soon as they have all between them: a, c; b, d" in from_two.reasons


def test_without_rates_it_is_not_known_when_a_pipeline_is_ready_and_one_target_alone_makes_none() -> None:
    apart = [member(id, f"box-{id}") for id in "sab"]
    pool = snapshot(serving("s"), *map(spare, "ab"), members=apart)
    assert planned_scale(in_pipelines(0.0), pool, 3).plan.pipelines == [PlannedPipeline(members=["a", "b"])]
    alone = planned_scale(in_pipelines(), pool, 2).plan
    assert (alone.pipelines, alone.live_targets) == ([], [])


def test_a_scale_by_hand_may_be_in_the_mode_pipeline_where_plans_make_some() -> None:
    pool = snapshot(serving("s"), *map(spare, "abc"))
    asked = Scale(model="m", instances=4, live="pipeline")
    for policy, refused in (("auto", False), ("chains", True)):
        planner, _ = scale_planner(policy, 1e6)  # type: ignore[arg-type]
        view = ModelView(pool, ENTRY, manifest(VERSION))
        with pytest.raises(Refusal, match="choose --plan-policy binomial") if refused else nullcontext():
            scale = planner.scale(asked, view, planner.count("m", view), at=1.0)
            assert isinstance(scale, ScaleOut)
            assert scale.plan.live == "pipeline"
            assert scale.plan.pipelines


@pytest.mark.parametrize(("system", "slo"), [("auto", 0.03), ("on", None), ("off", None)])
def test_workers_pace_decodes_by_the_slo_where_the_router_gives_roles_for_it(
    system: Disaggregation, slo: float | None
) -> None:
    settings = PlannerSettings(disaggregation=system, tbt_slo=0.03)
    planner = ScalePlanner(CountedIds(), settings, ScaleStore(1), None)
    scale = planned_scale(planner, snapshot(serving("s"), spare("a")), 2)
    [load] = [command.message for command in scale.start(2.0) if isinstance(command.message, Load)]
    assert load.tbt_slo == slo


def test_a_live_worker_is_no_source_of_a_second_scale() -> None:
    store = ScaleStore(1)
    planner = live_planner(store)
    first = planned_scale(planner, snapshot(serving("s"), spare("a"), spare("b")), 2)
    store.add(first)
    acknowledge(first, first.start(1.0))
    assert store.live() == {"a"}
    report = replace(loading("a", 2, "live"), epoch=1, instance=first.instances[0])
    second = planned_scale(planner, snapshot(serving("s"), report, spare("b")), 3)
    assert hops(second.plan) == [("s", "b")]
    first.on_lease(LeaseChanged(service="worker", id="a", epoch=1, state="dead", reason="silent", at=2.0), 2.0)
    assert store.live() == frozenset()


CUT = replace(ENTRY, spec=replace(ENTRY.spec, tensor_parallel_size=2))


def cut_manifest() -> Manifest:
    one = manifest(VERSION)
    config = replace(one.config, num_attention_heads=2, num_key_value_heads=2)
    return replace(one, config=config, shards=2, blocks=[replace(one.blocks[0], index=i) for i in range(2 * BLOCKS)])


def planned_for_ranks(pool: Snapshot, instances: int, mode: LiveMode = "off") -> ScaleOut:
    store = ScaleStore(1)
    planner = ScalePlanner(CountedIds(), PlannerSettings(link_rate=1e6, live=mode), store, None)
    view = ModelView(pool, CUT, cut_manifest())
    scale = planner.scale(Scale(model="m", instances=instances), view, planner.count("m", view), at=1.0)
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
    scale = planned_for_ranks(snapshot(whole_host("host-0"), *map(spare, "abcd")), 2)
    assert [instance.ranks for instance in scale.plan.instances] == [["a", "b"], ["c", "d"]]
    assert set(hops(scale.plan)) == {("host-0", "a"), ("a", "c"), ("host-0", "b"), ("b", "d")}
    loads = {command.node: command.message for command in scale.start(1.0)}
    for rank, worker in enumerate("abcd"):
        load = loads[worker]
        assert isinstance(load, Load)
        assert (load.rank, load.manifest) == (rank % 2, cut_manifest().of_shard(rank % 2))
        assert load.ranks == (["a", "b"] if worker in "ab" else ["c", "d"])


def test_a_host_is_told_of_each_shard_that_it_sends() -> None:
    scale = planned_for_ranks(snapshot(whole_host("host-0"), *map(spare, "ab")), 1)
    loads = scale.start(1.0)
    sends = [command for load in loads for command in scale.acknowledged(load, 1.0)]
    shards = {one.message.shard: one.message for one in sends if isinstance(one.message, Send)}
    assert [one.node for one in sends] == ["host-0", "host-0"]
    assert [shards[rank].outflows[0].downstream.id for rank in (0, 1)] == ["a", "b"]


def test_workers_that_serve_give_the_shards_that_they_have() -> None:
    pool = snapshot(rank_of_one("x", 0), rank_of_one("y", 1), *map(spare, "ab"))
    assert set(hops(planned_for_ranks(pool, 2).plan)) == {("x", "a"), ("y", "b")}
    alone = snapshot(rank_of_one("x", 0), *map(spare, "ab"))
    with pytest.raises(Refusal, match="no worker or host has the whole model in memory"):
        planned_for_ranks(alone, 2)


def test_an_instance_of_several_workers_is_live_by_its_first_and_serves_once_every_rank_is_whole() -> None:
    scale = planned_for_ranks(snapshot(whole_host("host-0"), *map(spare, "ab")), 1, mode="zigzag")
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
    pool = snapshot(*(whole_host(f"host-{number}") for number in range(sources)), *map(spare, workers))
    plan = planned_for_ranks(pool, 4, mode="pipeline").plan
    members = [one.members for one in plan.pipelines]
    assert list(map(len, members)) == [4 // sources] * sources
    assert sorted(worker for one in members for worker in one) == sorted(one.ranks[0] for one in plan.instances)
    assert plan.live_targets == [worker for one in members for worker in one]


def test_a_rank_that_lost_its_source_gets_the_rest_of_its_own_shard() -> None:
    pool = snapshot(rank_of_one("x", 0), rank_of_one("y", 1), whole_host("host-0"), *map(spare, "ab"))
    planner, _ = scale_planner("chains")
    scale = planned_for_ranks(pool, 2)
    for command in scale.start(1.0):
        scale.acknowledged(command, 1.0)
    dead = LeaseChanged(service="worker", id="y", epoch=1, state="dead", reason="silent", at=2.0)
    scale.on_lease(dead, 2.0)
    left = snapshot(rank_of_one("x", 0), whole_host("host-0"), *map(spare, "ab"))
    again = [command.message for command in planner.out.replan(scale, ModelView(left, CUT, cut_manifest()), 3.0)]
    assert [(load.rank, load.inflows[0].upstream.id) for load in again if isinstance(load, Load)] == [(1, "host-0")]


@pytest.mark.parametrize("roles", [("prefill", "decode"), ("decode", "prefill")])
def test_an_instance_that_decodes_feeds_targets_although_it_has_more_requests(roles: tuple[str, str]) -> None:
    """KV leaves those that prefill, if not now then with the next prompt (BlitzScale 5.1)."""
    sources = [serving(f"s{n}", 5 if role == "decode" else 0, role=role) for n, role in enumerate(roles)]
    plan = planned("chains", snapshot(*sources, spare("a")), 3)
    assert hops(plan) == [(f"s{roles.index('decode')}", "a")]
    only = planned("chains", snapshot(serving("s0", role="prefill"), spare("a")), 2)
    assert hops(only) == [("s0", "a")]


def parked(id: str) -> WorkerReport:
    return replace(spare(id), parked=VERSION)


def test_an_instance_whose_worker_has_everything_still_receives_nothing_and_serves() -> None:
    scale = planned_scale(live_planner(ScaleStore(1)), snapshot(serving("s"), parked("a"), parked("b")), 3)
    assert (scale.plan.parked, scale.plan.flows, scale.plan.live_targets) == (["a", "b"], [], [])
    assert "a, b: the parameters are there still" in scale.plan.reasons
    loads = scale.start(1.0)
    assert [(one.node, one.message.parked, one.message.inflows) for one in loads if isinstance(one.message, Load)] == [
        ("a", True, []),
        ("b", True, []),
    ]
    assert acknowledge(scale, loads) == []
    for worker in ("a", "b"):
        [serve] = scale.on_transfer(Transfer(plan_id=scale.id, node=worker, state="whole", at=2.0), 2.0)
        scale.check_invariants()
        scale.acknowledged(serve, 2.1)
    assert scale.record().state == "done"


def test_beside_one_that_has_everything_the_others_are_sent_what_they_lack() -> None:
    plan = planned_scale(live_planner(ScaleStore(1)), snapshot(serving("s"), parked("b"), *map(spare, "ac")), 4).plan
    assert (plan.parked, hops(plan), plan.live_targets) == (["b"], [("s", "a"), ("a", "c")], ["c"])
    assert [one.ranks for one in plan.instances] == [["b"], ["a"], ["c"]]


def test_one_that_lost_what_it_had_fails_and_the_others_go_on() -> None:
    scale = planned_scale(live_planner(ScaleStore(1)), snapshot(serving("s"), parked("b"), spare("a")), 3)
    [hot, cold] = scale.start(1.0)
    scale.refused(hot, "409: parked: none are here", 1.1)
    assert [type(one.message) for one in acknowledge(scale, [cold])] == [Send]
    scale.check_invariants()
    assert scale.coming == {scale.plan.instances[1].id}


def test_a_planner_that_takes_over_has_the_workers_with_everything_serve() -> None:
    pool = snapshot(serving("s"), parked("a"))
    planner = live_planner(ScaleStore(1))
    scale = planned_scale(planner, pool, 2)
    scale.start(1.0)
    there = loading("a", BLOCKS, "loading")
    there = replace(there, plan_id=scale.id, instance=scale.plan.instances[0].id)
    view = ModelView(snapshot(serving("s"), there), ENTRY, manifest(VERSION))
    later, commands = planner.take_over(scale.record(), view, 5.0)
    assert [(one.node, type(one.message)) for one in commands] == [("a", Serve)]
    later.check_invariants()  # type: ignore[union-attr]


def test_a_target_that_served_and_was_drained_while_there_was_no_planner_has_not_failed() -> None:
    pool = snapshot(serving("s"), spare("a"), spare("b"))
    planner, _ = scale_planner("chains")
    scale = planned_scale(planner, pool, 3)
    acknowledge(scale, scale.start(1.0))
    first, second = (one.ranks[0] for one in scale.plan.instances)
    acknowledge(scale, scale.on_transfer(transfer(first, "whole"), 2.0))
    loads = replace(loading(second, 1, "loading"), plan_id=scale.id, instance=scale.plan.instances[1].id)
    view = ModelView(snapshot(serving("s"), spare(first), loads), ENTRY, manifest(VERSION))
    later, _ = planner.take_over(scale.record(), view, 5.0)
    assert (later.state, later.coming) == ("loading", {scale.plan.instances[1].id})
    later.on_report(replace(loads, state="serving"), 6.0)
    assert (later.state, later.record().outcome) == ("done", "2 new instances serve")


def test_a_scale_to_a_version_that_was_replaced_while_there_was_no_planner_says_so() -> None:
    pool = snapshot(serving("s"), spare("a"))
    planner, _ = scale_planner("chains")
    scale = planned_scale(planner, pool, 2)
    acknowledge(scale, scale.start(1.0))
    loads = replace(loading("a", 1, "loading"), plan_id=scale.id, instance=scale.plan.instances[0].id)
    view = ModelView(snapshot(serving("s"), loads), ENTRY, manifest("another version"))
    later, _ = planner.take_over(scale.record(), view, 5.0)
    assert (later.state, later.coming) == ("failed", frozenset())
    assert later.record().outcome.startswith("a had to load a version that is not there any more")


def test_a_target_that_was_drained_had_served_although_that_was_not_saved() -> None:
    store = ScaleStore(1)
    planner = live_planner(store)
    scale = planned_scale(planner, snapshot(serving("s"), spare("a"), spare("b")), 3)
    acknowledge(scale, scale.start(1.0))
    first, second = scale.plan.instances
    loads = replace(loading(second.ranks[0], 1, "loading"), plan_id=scale.id, instance=second.id)
    drain = ScaleRecord(
        id="in", decision=replace(scale.decision, action="in"), state="done", instances=[first.id], phases=[]
    )
    store.remember([scale.record(), drain])
    view = ModelView(snapshot(serving("s"), spare(first.ranks[0]), loads), ENTRY, manifest(VERSION))
    later, _ = planner.take_over(scale.record(), view, 5.0)
    assert (later.state, later.coming) == ("loading", {second.id})
    later.on_report(replace(loads, state="serving"), 6.0)
    assert (later.state, later.record().outcome) == ("done", "2 new instances serve")


def test_a_scale_whose_targets_were_all_drained_is_done() -> None:
    store = ScaleStore(1)
    planner = live_planner(store)
    scale = planned_scale(planner, snapshot(serving("s"), spare("a")), 2)
    acknowledge(scale, scale.start(1.0))
    drained = [one.id for one in scale.plan.instances]
    drain = ScaleRecord(
        id="in", decision=replace(scale.decision, action="in"), state="done", instances=drained, phases=[]
    )
    store.remember([scale.record(), drain])
    view = ModelView(snapshot(serving("s"), spare("a")), ENTRY, manifest(VERSION))
    later, _ = planner.take_over(scale.record(), view, 5.0)
    assert (later.state, later.record().outcome) == ("done", "1 new instances serve")
