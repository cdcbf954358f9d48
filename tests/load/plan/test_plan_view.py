import pytest

from livescale.load.plan.dry_run import dry_run, find_sources
from livescale.load.plan.view import chain_lines, name_runs
from livescale.shared.topology.file import find_topology
from tests.planner.plans.made import cluster, machine, singles


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((4, 5, 0, 1, 3), "4-5 0-1 3")]
)
def test_neighbours_are_named_together(numbers: tuple[int, ...], text: str) -> None:
    assert name_runs(numbers) == text


def test_sources_are_on_as_many_hosts_as_there_are() -> None:
    topology = find_topology("cluster-a")
    assert find_sources(topology, "3") == ["a0/0", "a1/0", "a2/0"]
    assert find_sources(topology, "6") == ["a0/0", "a1/0", "a2/0", "a3/0", "a0/1", "a1/1"]
    assert find_sources(topology, "a1, a2/7") == ["a1", "a2/7"]


def test_a_chain_is_told_from_its_holder_to_its_end() -> None:
    topology = cluster(machine("s", 2), machine("t", 2), machine("u", 2), *singles(2))
    run = dry_run(topology, (100,) * 4, 5, "chains", "s/0,s/1")
    [line] = chain_lines(run.plan, run.multicast.nodes)
    assert line == "s/0 -> t (2 targets, 2 lanes) -> u (2 targets, 2 lanes) -> h0/0"
