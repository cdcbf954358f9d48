from livescale.services.planner.fleet import choose_to_drain, count_fleet
from tests.planner.made import serving, spare


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
