from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.services.planner.fleet import ModelView, check_target, choose_spares, choose_to_drain, count_fleet
from livescale.services.planner.plans.plan import CannotPlan
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import HostReport, WorkerReport
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.scaling import Scale
from tests.control.fakes import manifest
from tests.planner.samples import ENTRY, SIZE, decision, host, member, serving, snapshot, spare


def test_what_plans_add_and_take_away_is_counted_once() -> None:
    workers = [
        serving("w-1"),
        serving("w-2", state="loading"),
        serving("w-3", state="draining"),
        serving("w-4"),
        serving("w-5", model="other"),
        spare("w-6"),
    ]
    fleet = count_fleet("m", workers, frozenset({"i-w-2", "i-new"}), frozenset({"i-w-4"}))
    assert fleet.present == {"i-w-1", "i-w-2", "i-new"}
    assert [one.instance for one in fleet.serving] == ["i-w-1"]


def test_what_one_plan_adds_and_another_drains_already_is_not_counted() -> None:
    fleet = count_fleet("m", [serving("w-1"), serving("w-2")], frozenset({"i-w-2", "i-w-3"}), frozenset({"i-w-2"}))
    assert fleet.present == {"i-w-1", "i-w-3"}


def test_the_instances_with_the_fewest_requests_are_drained_and_none_that_loads() -> None:
    workers = [serving("w-1", running=3), serving("w-2", running=1), serving("w-3", running=1)]
    fleet = count_fleet("m", [*workers, serving("w-0", state="loading")], frozenset(), frozenset())
    assert [one.ranks for one in choose_to_drain(fleet, 2, "v")] == [("w-2",), ("w-3",)]
    assert len(choose_to_drain(fleet, 9, "v")) == 3


def test_instances_of_another_version_are_drained_first() -> None:
    workers = [serving("w-1"), serving("w-2", running=3, version="old"), serving("w-3", running=1)]
    fleet = count_fleet("m", workers, frozenset(), frozenset())
    assert [one.instance for one in choose_to_drain(fleet, 2, "v")] == ["i-w-2", "i-w-1"]


def test_an_instance_of_several_ranks_counts_once_and_drains_whole() -> None:
    workers = [serving("w-2", instance="i", rank=1), serving("w-1", instance="i", rank=0)]
    fleet = count_fleet("m", workers, frozenset(), frozenset())
    assert fleet.present == {"i"}
    assert [one.ranks for one in fleet.serving] == [("w-1", "w-2")]


def test_new_instances_are_spread_over_machines() -> None:
    reports = [serving("w-0"), *(spare(f"w-{index}") for index in range(1, 6))]
    machines = {"w-0": "a", "w-1": "a", "w-2": "a", "w-3": "b", "w-4": "b", "w-5": "c"}
    members = [member(id, machine) for id, machine in machines.items()]
    chosen, why = choose_spares(snapshot(*reports, members=members), ENTRY, 4, frozenset())
    # a has one already; b and c come first, then each has one.
    assert chosen == [["w-3"], ["w-5"], ["w-1"], ["w-4"]]
    assert why == "targets w-3, w-5, w-1, w-4: spare, spread over machines"


def test_as_many_as_there_are_and_the_reason_says_how_many_are_missing() -> None:
    chosen, why = choose_spares(snapshot(serving("w-1"), spare("w-2")), ENTRY, 3, frozenset())
    assert chosen == [["w-2"]]
    assert why.endswith("2 more were wanted")


@pytest.mark.parametrize(
    "unfit",
    [{"arena_bytes": SIZE - 1}, {"reserved": True}, {"lease": "suspect"}, {"address": None}],
    ids=lambda unfit: next(iter(unfit)),
)
def test_without_a_worker_that_fits_there_is_no_plan(unfit: dict[str, object]) -> None:
    reports = [serving("w-1"), spare("w-2", arena_bytes=unfit.get("arena_bytes", SIZE))]  # type: ignore[arg-type]
    members = [member("w-1"), member("w-2", "box", **{k: v for k, v in unfit.items() if k in ("lease", "address")})]
    reserved = frozenset({"w-2"} if "reserved" in unfit else ())
    with pytest.raises(CannotPlan, match="no spare worker fits"):
        choose_spares(snapshot(*reports, members=members), ENTRY, 1, reserved)


@given(
    spares=st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from("abc"), st.integers(50, 200)), min_size=1, max_size=12
    ),
    count=st.integers(1, 8),
    taken=st.sets(st.integers(0, 30)),
)
def test_each_is_chosen_once_and_fits_whatever_the_order(
    spares: list[tuple[int, str, int]], count: int, taken: set[int]
) -> None:
    workers = {f"w-{number}": (machine, arena) for number, machine, arena in spares}
    reports: list[WorkerReport | HostReport] = [
        host("host-0"),
        *(spare(id, arena) for id, (_, arena) in workers.items()),
    ]
    members = [member("host-0"), *(member(id, machine) for id, (machine, _) in workers.items())]
    reserved = frozenset(f"w-{number}" for number in taken)
    fits = {id for id, (_, arena) in workers.items() if arena >= SIZE} - reserved
    if not fits:
        with pytest.raises(CannotPlan):
            choose_spares(snapshot(*reports, members=members), ENTRY, count, reserved)
        return
    instances, _ = choose_spares(snapshot(*reports, members=members), ENTRY, count, reserved)
    chosen = [worker for (worker,) in instances]
    assert len(chosen) == len(set(chosen)) == min(count, len(fits))
    assert set(chosen) <= fits
    assert choose_spares(snapshot(*reversed(reports), members=members[::-1]), ENTRY, count, reserved)[0] == instances


def of_ranks(count: int) -> ModelEntry:
    return replace(ENTRY, spec=replace(ENTRY.spec, tensor_parallel_size=count))


def test_the_ranks_of_an_instance_are_on_one_machine_where_one_has_enough() -> None:
    machines = {"w-0": "a", "w-1": "a", "w-2": "b", "w-3": "b", "w-4": "c"}
    members = [member(id, machine) for id, machine in machines.items()]
    reports = [serving("w-0"), *(spare(f"w-{index}") for index in range(1, 5))]
    chosen, why = choose_spares(snapshot(*reports, members=members), of_ranks(2), 2, frozenset())
    assert chosen == [["w-2", "w-3"], ["w-1", "w-4"]]
    assert why == "targets w-2 + w-3, w-1 + w-4: spare, spread over machines"


def test_a_rank_needs_room_for_its_shard_only() -> None:
    reports = [spare(f"w-{index}", arena_bytes=SIZE // 2) for index in range(3)]
    assert choose_spares(snapshot(*reports), of_ranks(2), 1, frozenset())[0] == [["w-0", "w-1"]]


def test_too_few_spares_for_an_instance_are_none() -> None:
    with pytest.raises(CannotPlan, match="an instance needs 4 spare workers, 3 fit"):
        choose_spares(snapshot(*(spare(f"w-{index}") for index in range(3))), of_ranks(4), 1, frozenset())


def test_a_worker_that_has_the_parameters_still_comes_first_and_what_others_want_again_is_kept() -> None:
    reports = [
        serving("w-0"),
        replace(spare("w-1"), parked="other"),
        spare("w-2"),
        replace(spare("w-3"), parked=ENTRY.version),
    ]
    machines = {"w-0": "b", "w-1": "a", "w-2": "a", "w-3": "b"}
    members = [member(id, machine) for id, machine in machines.items()]
    chosen, _ = choose_spares(snapshot(*reports, members=members), ENTRY, 3, frozenset())
    assert chosen == [["w-3"], ["w-2"], ["w-1"]]


@pytest.mark.parametrize(
    ("instances", "actual", "is_monitor", "is_right"),
    [
        (3, 4, True, True),  # on the way to a maximum that was lowered
        (4, 4, True, True),
        (5, 4, True, False),
        (3, 2, True, False),
        (0, 2, True, True),
        (3, 4, False, False),
        (0, 2, False, False),
    ],
)
def test_only_the_monitor_gives_back_one_by_one_what_is_more_than_the_maximum(
    instances: int, actual: int, is_monitor: bool, is_right: bool
) -> None:
    entry = replace(ENTRY, spec=replace(ENTRY.spec, min_instances=1, max_instances=2))
    asked = Scale(model="m", instances=instances, decision=decision() if is_monitor else None)
    with nullcontext() if is_right else pytest.raises(Refusal, match="instances must be 1 to 2 for 'm'"):
        check_target(asked, ModelView(snapshot(), entry, manifest("v")), actual)
