from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as some

from livescale.services.planner.role_planner import choose_roles, roles_of
from livescale.shared.messages.membership import Role, WorkerReport
from livescale.shared.messages.transfers import PlannedInstance


def chosen(there: Sequence[Role | None], count: int, share: float) -> list[Role]:
    return choose_roles(there, count, share)[0]


def letters(roles: list[Role]) -> str:
    return "".join(role[0] for role in roles)


def test_it_is_said_why() -> None:
    assert choose_roles(["prefill"], 2, 0.5)[1] == [
        "roles decode, prefill: of those there, 1 prefill and 0 decode, and a share of 0.5 is to prefill"
    ]


def test_the_first_prefills_the_second_decodes_and_then_the_share_is_kept() -> None:
    assert letters(chosen([], 8, 0.5)) == "pdpdpdpd"
    assert letters(chosen([], 8, 0.75)).count("p") == 6
    assert letters(chosen([], 4, 0.0)) == "pddd"
    assert letters(chosen([], 4, 1.0)) == "pdpp"


def test_who_replaces_a_lost_instance_gets_its_role() -> None:
    assert chosen(["prefill", "prefill"], 1, 0.5) == ["decode"]
    assert chosen(["decode", "decode"], 1, 0.5) == ["prefill"]
    assert chosen(["colocated", None], 2, 0.5) == ["prefill", "decode"]


@given(some.lists(some.sampled_from(["prefill", "decode"]), max_size=6), some.integers(2, 8), some.floats(0, 1))
def test_however_many_come_some_prefill_and_some_decode(there: list[Role], count: int, share: float) -> None:
    roles = [*there, *chosen(there, count, share)]
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
