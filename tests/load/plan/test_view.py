import pytest

from livescale.load.plan.dry_run import dry_run
from livescale.load.plan.view import chain_lines, format_seconds, name_runs
from tests.planner.plans.clusters import cluster, machine, singles


def test_long_times_are_whole_seconds() -> None:
    assert [format_seconds(seconds) for seconds in (0.0123, 1.234, 123.4, 1234.5)] == [
        "12.3 ms", "1.23 s", "123 s", "1234 s"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((4, 5, 0, 1, 3), "4-5 0-1 3")]
)
def test_neighbours_are_named_together(numbers: tuple[int, ...], text: str) -> None:
    assert name_runs(numbers) == text


def test_a_chain_is_told_from_its_holder_to_its_end() -> None:
    topology = cluster(machine("s", 2), machine("t", 2), machine("u", 2), *singles(2))
    run = dry_run(topology, (100,) * 4, 5, "chains", "s/0,s/1")
    [line] = chain_lines(run.plan, run.multicast.nodes)
    assert line == "s/0 -> t (2 targets, 2 lanes) -> u (2 targets, 2 lanes) -> h0/0"
