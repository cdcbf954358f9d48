from livescale.load.plan.dry_run import find_sources
from livescale.shared.topology.file import find_topology


def test_sources_are_on_as_many_hosts_as_there_are() -> None:
    topology = find_topology("cluster-a")
    assert find_sources(topology, "3") == ["a0/0", "a1/0", "a2/0"]
    assert find_sources(topology, "6") == ["a0/0", "a1/0", "a2/0", "a3/0", "a0/1", "a1/1"]
    assert find_sources(topology, "a1, a2/7") == ["a1", "a2/7"]
