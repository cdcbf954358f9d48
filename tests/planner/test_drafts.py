"""Plans by the policy that is set. How they are carried out is tested with the control plane."""

import pytest

from services.planner.book import Book
from services.planner.drafts import Drafts
from services.planner.scale_out import ScaleOut
from services.planner.settings import PlannerSettings
from services.planner.view import View
from shared.bus.contract import Refusal
from shared.messages.membership import Snapshot
from shared.messages.scaling import Scale
from shared.messages.transfers import Plan
from shared.settings import PolicyName
from shared.world import CountedIds
from tests.control.fakes import manifest
from tests.planner.made import ENTRY, VERSION, host, member, serving, snapshot, spare


def planned(policy: PolicyName, picture: Snapshot, instances: int, link_rate: float = 0.0) -> Plan:
    drafts = Drafts(CountedIds(), PlannerSettings(plan_policy=policy, link_rate=link_rate), Book(1), None)
    view = View(picture, ENTRY, manifest(VERSION))
    scale = drafts.scale(Scale(model="m", instances=instances), view, drafts.count("m", view), at=1.0)
    assert isinstance(scale, ScaleOut)
    plan = scale.record().plan
    assert plan is not None
    return plan


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


def test_who_received_first_from_whom_is_a_tree_also_where_steps_have_everybody_exchange() -> None:
    made = planned("binomial", snapshot(serving("s"), *map(spare, "abc")), 4, link_rate=1e6)
    assert all(path[0] == "s" for path in made.paths)
    assert {node for path in made.paths for node in path} == {"s", "a", "b", "c"}
