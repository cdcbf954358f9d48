"""Faults of a file: at a moment they befall all whom they name, by chance one of them."""

import math

import pytest

from livescale.load.scenario.fault_entries import FaultEntry, draw_faults
from livescale.load.simulate.faults import ClusterFault

ABLE = ["worker-0", "worker-1", "worker-2"]


def test_what_has_a_moment_happens_then_and_lasts_as_long_as_it_says() -> None:
    at_once = FaultEntry(what="kill", at=3.0, who="worker", seconds=math.inf)
    usual = FaultEntry(what="slow-disk", at=1.0, who="host")
    assert draw_faults([(at_once, ABLE), (usual, [])], 100, 0) == [
        ClusterFault(at=1.0, what="slow-disk", who="host", seconds=60.0, amount=10.0),
        ClusterFault(at=3.0, what="kill", who="worker", seconds=math.inf),
    ]


def test_what_comes_by_chance_comes_about_so_often_to_any_of_them() -> None:
    drawn = draw_faults([(FaultEntry(what="kill", every=10.0, who="worker"), ABLE)], 10_000, 1)
    assert len(drawn) == pytest.approx(1000, rel=0.1)
    assert {each.who for each in drawn} == set(ABLE)
    assert [each.at for each in drawn] == sorted(each.at for each in drawn)
    assert drawn != draw_faults([(FaultEntry(what="kill", every=10.0, who="worker"), ABLE)], 10_000, 2)


def test_messages_have_no_victim() -> None:
    drawn = draw_faults([(FaultEntry(what="lose", every=10.0), [])], 100, 1)
    assert {(each.who, each.amount) for each in drawn} == {("", 0.01)}


def test_what_is_drawn_for_one_does_not_depend_on_another() -> None:
    def drawn(first: float) -> list[ClusterFault]:
        entries = [(FaultEntry(what="lose", every=first), list[str]()), (FaultEntry(what="delay", every=7.0), [])]
        return [fault for fault in draw_faults(entries, 100, 1) if fault.what == "delay"]

    assert drawn(5.0) == drawn(9.0) != []
