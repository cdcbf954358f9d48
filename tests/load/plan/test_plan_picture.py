"""What is drawn of a plan, row by row."""

from livescale.load.plan.dry_run import DISKS, dry_run
from livescale.load.plan.picture import MOST_ROWS, draw_plan, make_rows
from livescale.load.plan.view import format_seconds
from livescale.shared.topology.file import find_topology
from tests.planner.plans.made import cluster, machine


def test_a_holder_stands_before_what_it_feeds_so_that_none_is_cut_off_from_its_targets() -> None:
    topology = cluster(*(machine(f"h{index}", 2) for index in range(2)))
    rows = list(make_rows(dry_run(topology, (100,) * 4, 4, "local", DISKS)))
    assert [row.label.removesuffix(" (live)") for row in rows] == [
        "h0 disk", "h0/0", "h0/1", "h1 disk", "h1/0", "h1/1"
    ]  # fmt: skip
    assert [len(row.blocks) for row in rows] == [0, 4, 4, 0, 4, 4]


def test_lanes_and_what_can_serve_live_stand_beside_the_names() -> None:
    run = dry_run(cluster(machine("s", 2), machine("t", 2)), (100,) * 4, 2, "chains", "s/0,s/1")
    assert [row.label for row in make_rows(run)] == ["s/0", "s/1", "t/0 (lane 1, live)", "t/1 (lane 2, live)"]


def test_targets_that_are_not_drawn_are_counted_and_holders_are_not() -> None:
    hosts = MOST_ROWS // 4
    topology = cluster(*(machine(f"h{index:02}", 2) for index in range(2 * hosts)))
    run = dry_run(topology, (100,) * 4, 4 * hosts, "local", DISKS)
    drawn = sum(bool(row.blocks) for row in list(make_rows(run))[:MOST_ROWS])
    assert f"{4 * hosts - drawn} more targets are not drawn" in draw_plan(run)


def test_a_picture_is_as_wide_as_its_page_at_most() -> None:
    run = dry_run(find_topology("cluster-a"), (100,) * 4, 3, "fanout", "1")
    assert "max-width: 100%; height: auto" in draw_plan(run)


def test_long_times_are_whole_seconds() -> None:
    assert [format_seconds(seconds) for seconds in (0.0123, 1.234, 123.4, 1234.5)] == [
        "12.3 ms", "1.23 s", "123 s", "1234 s"
    ]  # fmt: skip
