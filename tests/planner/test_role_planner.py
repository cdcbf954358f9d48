"""Which instances get another role, what new ones get, and how a change of roles is carried out."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from livescale.services.planner.fleet import ModelView
from livescale.services.planner.role_planner import RolePlan, choose_roles, plan_roles, roles_of
from livescale.services.planner.role_switch import RoleSwitch
from livescale.services.planner.running_scale import NodeCommand
from livescale.services.planner.scale_in import ScaleIn
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.scale_planner import ScalePlanner
from livescale.services.planner.settings import PlannerSettings
from livescale.services.planner.store import ScaleStore
from livescale.shared.messages.disaggregation import ChangeRole
from livescale.shared.messages.membership import Role, WorkerReport
from livescale.shared.messages.scaling import Action, Scale
from livescale.shared.messages.transfers import Load, PlannedInstance
from livescale.shared.runtime.clock import CountedIds
from livescale.shared.runtime.role_settings import DecodeScaling
from tests.control.fakes import manifest
from tests.planner.samples import ENTRY, VERSION, decision, load, serving, snapshot, spare


def by_share(there: Sequence[Role | None], count: int, share: float) -> list[Role]:
    return choose_roles(there, count, share)[0]


def letters(roles: list[Role]) -> str:
    return "".join(role[0] for role in roles)


def test_it_is_said_why() -> None:
    assert choose_roles(["prefill"], 2, 0.5)[1] == [
        "roles decode, prefill: of those there, 1 prefill and 0 decode, and a share of 0.5 is to prefill"
    ]


def test_the_first_prefills_the_second_decodes_and_then_the_share_is_kept() -> None:
    assert letters(by_share([], 8, 0.5)) == "pdpdpdpd"
    assert letters(by_share([], 8, 0.75)).count("p") == 6
    assert letters(by_share([], 4, 0.0)) == "pddd"
    assert letters(by_share([], 4, 1.0)) == "pdpp"


def test_who_replaces_a_lost_instance_gets_its_role() -> None:
    assert by_share(["prefill", "prefill"], 1, 0.5) == ["decode"]
    assert by_share(["decode", "decode"], 1, 0.5) == ["prefill"]
    assert by_share(["colocated", None], 2, 0.5) == ["prefill", "decode"]


@given(some.lists(some.sampled_from(["prefill", "decode"]), max_size=6), some.integers(2, 8), some.floats(0, 1))
def test_however_many_come_some_prefill_and_some_decode(there: list[Role], count: int, share: float) -> None:
    roles = [*there, *by_share(there, count, share)]
    assert {"prefill", "decode"} <= set(roles)


def report(id: str, **more: object) -> WorkerReport:
    common = {"epoch": 1, "state": "serving", "model": "m", "instance": f"i-{id}", "role": "prefill"}
    return WorkerReport(id=id, **{**common, **more})  # type: ignore[arg-type]


def test_roles_are_those_that_workers_say_and_of_those_that_come_those_planned() -> None:
    workers = [
        report("a", role="decode"),
        report("b", state="draining"),
        report("c", rank=1, instance="i-a"),
        report("d", model="n"),
        report("e", state="spare", model=None, instance=None),
        report("f"),
    ]
    planned = [PlannedInstance(id="i-a", ranks=["a"], role="prefill"), PlannedInstance(id="i-z", ranks=["z"])]
    assert roles_of("m", workers, planned, ["i-f"]) == {"i-a": "decode", "i-z": "colocated"}


def instance(id: str, role: Role, blocks: int = 0, **more: object) -> WorkerReport:
    told = {"load": replace(load(), kv_blocks_used=blocks), **more}
    return serving(id, 0, role=role, **told)


def chosen(
    pool: list[WorkerReport], prefill: int, decode: int, count: int = 0, scaling: DecodeScaling = "mutate"
) -> tuple[list[str], str]:
    """The workers that get another role, and the roles of new instances by their first letters."""
    made = plan(pool, prefill, decode, count, scaling)
    return [f"{move.worker}>{move.role}" for move in made.moves], "".join(role[0] for role in made.roles)


def plan(pool: list[WorkerReport], prefill: int, decode: int, count: int, scaling: DecodeScaling) -> RolePlan:
    there = {str(one.instance): one.role for one in pool}
    return plan_roles(there, pool, {"prefill": prefill, "decode": decode}, count, scaling)


POOL = [instance("p", "prefill", 9), instance("q", "prefill", 2), instance("r", "prefill", 5), instance("d", "decode")]


def test_decode_grows_by_mutation_of_those_with_the_fewest_blocks_and_prefill_is_loaded_in_their_place() -> None:
    assert chosen(POOL, 3, 2, 1) == (["q>decode"], "p")
    assert chosen(POOL, 3, 3, 2) == (["q>decode", "r>decode"], "pp")
    made = plan(POOL, 3, 2, 1, "mutate")
    assert "fewest KV blocks (2), and 1 new instances take its place" in made.moves[0].reason


def test_one_that_prefills_is_kept_and_further_ones_are_loaded_to_decode() -> None:
    assert chosen(POOL, 3, 5, 4) == (["q>decode", "r>decode"], "ppdd")
    assert chosen([POOL[0], POOL[3]], 1, 2, 1) == ([], "d")


def test_with_the_mode_load_only_surplus_changes_and_new_instances_decode() -> None:
    assert chosen(POOL, 3, 2, 1, "load") == ([], "d")
    assert chosen(POOL, 2, 3, 1, "load") == (["q>decode"], "d")


def test_decode_that_is_not_needed_prefills() -> None:
    pool = [instance("p", "prefill"), instance("d", "decode", 3), instance("e", "decode", 1)]
    assert chosen(pool, 2, 1) == (["e>prefill"], "")
    assert chosen(pool, 4, 1, 2) == (["e>prefill"], "pp")
    assert chosen(pool, 2, 2, 1) == ([], "p")


def test_only_instances_that_serve_change() -> None:
    assert chosen([*POOL[:1], instance("q", "prefill", state="live"), POOL[3]], 1, 2) == (["p>decode"], "")
    assert chosen([POOL[0], instance("q", "prefill", state="loading"), POOL[3]], 2, 2, 1) == (["p>decode"], "p")


COUNT = some.integers(1, 6)


@given(COUNT, some.integers(0, 6), COUNT, COUNT, some.sampled_from(["mutate", "load"]))
def test_there_are_as_many_of_each_role_as_are_wanted_where_as_many_are_made(
    prefill: int, decode: int, more: int, wanted_decode: int, scaling: DecodeScaling
) -> None:
    pool = [instance(f"p{n}", "prefill", n) for n in range(prefill)]
    pool += [instance(f"d{n}", "decode", n) for n in range(decode)]
    total = prefill + decode + more - 1
    wanted_prefill = max(1, total - wanted_decode)
    made = plan(pool, wanted_prefill, total - wanted_prefill, more - 1, scaling)
    roles = {str(one.instance): one.role for one in pool} | {move.instance: move.role for move in made.moves}
    kept = list(roles.values())
    assert len(made.roles) == more - 1
    assert [*kept, *made.roles].count("prefill") == wanted_prefill
    assert not prefill or "prefill" in kept


def scale_planner(store: ScaleStore, **more: object) -> ScalePlanner:
    told = {"link_rate": 1e6, "disaggregation": "on", **more}
    return ScalePlanner(CountedIds(), PlannerSettings(**told), store, None)  # type: ignore[arg-type]


def scaled(
    planner: ScalePlanner, pool: list[WorkerReport], action: Action, prefill: int, decode: int
) -> ScaleIn | ScaleOut | RoleSwitch:
    view = ModelView(snapshot(*pool), ENTRY, manifest(VERSION))
    roles: dict[Role, int] = {"prefill": prefill, "decode": decode}
    asked = Scale(model="m", instances=prefill + decode, decision=replace(decision(action), roles=roles))
    return planner.scale(asked, view, planner.count("m", view), at=1.0)


def orders(commands: list[NodeCommand]) -> list[tuple[str, Role]]:
    return [(one.node, one.message.role) for one in commands if isinstance(one.message, ChangeRole)]


def test_one_plan_has_the_mutation_and_who_is_loaded_in_its_place_and_counts_both_at_once() -> None:
    store = ScaleStore(1)
    planner = scale_planner(store)
    scale = scaled(planner, [*POOL, spare("s")], "out", 3, 2)
    assert isinstance(scale, ScaleOut)
    store.add(scale)
    commands = scale.start(1.0)
    assert orders(commands) == [("q", "decode")]
    assert [one.message.role for one in commands if isinstance(one.message, Load)] == ["prefill"]
    assert [move.worker for move in scale.record().moves] == ["q"]
    view = ModelView(snapshot(*POOL, spare("s")), ENTRY, manifest(VERSION))
    roles: dict[Role, int] = {"prefill": 3, "decode": 2}
    again = Scale(model="m", instances=5, decision=replace(decision(), roles=roles))
    assert not planner.has_to_switch(again, view)
    assert scale.wants(commands[0])
    scale.on_report(instance("q", "decode"), 2.0)
    assert [(phase.name, phase.node, phase.detail) for phase in scale.record().phases][2:] == [
        ("switched", "q", "prefill -> decode")
    ]
    assert not scale.wants(commands[0])


def test_a_fixed_share_goes_before_what_the_load_needs() -> None:
    scale = scaled(scale_planner(ScaleStore(1), prefill_share=1.0), [*POOL, spare("s")], "out", 3, 2)
    assert isinstance(scale, ScaleOut)
    assert (scale.record().moves, [one.role for one in scale.plan.instances]) == ([], ["prefill"])


def test_the_role_with_most_beyond_what_is_wanted_is_drained() -> None:
    for prefill, decode, drained in ((2, 1, ["i-p"]), (3, 0, ["i-d"]), (1, 1, ["i-p", "i-q"])):
        scale = scaled(scale_planner(ScaleStore(1)), POOL, "in", prefill, decode)
        assert scale.instances == drained
