"""What a flow passes from one place of a cluster to another."""

import msgspec
from hypothesis import given, settings

from livescale.shared.topology.paths import Resource
from livescale.shared.topology.topology import Domain, Gpu, Leaf, Topology, TopologyHost
from tests.shared.topology.topologies import topologies


def host(name: str, gpus: int = 2, leaf: str = "leaf0", domain: str = "", nic: float = 0.0) -> TopologyHost:
    return TopologyHost(
        id=name,
        leaf=leaf,
        gpus=[
            Gpu(
                id=f"{name}/{index}",
                domain=domain or name,
                memory_bytes=80,
                nic_in=nic,
                nic_out=nic * 2,
                host_link=16.0,
            )
            for index in range(gpus)
        ],
        memory_bytes=1000,
        nic_in=10.0,
        nic_out=20.0,
        disk=1.0,
    )


def cluster(
    *hosts: TopologyHost, domains: tuple[str, ...] = (), leaves: tuple[Leaf, ...] = (Leaf(id="leaf0"),)
) -> Topology:
    names = domains or tuple(each.id for each in hosts)
    return Topology(
        name="test",
        hosts=list(hosts),
        domains=[Domain(id=name, bandwidth=200.0) for name in names],
        leaves=list(leaves),
    )


def used(topology: Topology, sender: str, receiver: str) -> list[tuple[str, str, float]]:
    return [(each.kind, each.owner, each.rate) for each in topology.path(sender, receiver).resources]


def test_gpus_of_one_domain_use_it_each_in_its_direction() -> None:
    topology = cluster(host("a"), host("b"))
    assert topology.path("a/0", "a/1").over == "domain"
    assert used(topology, "a/0", "a/1") == [("domain_out", "a/0", 200.0), ("domain_in", "a/1", 200.0)]


def test_a_domain_may_join_gpus_of_several_hosts() -> None:
    topology = cluster(host("a", domain="rack"), host("b", domain="rack"), domains=("rack",))
    assert topology.path("a/0", "b/1").over == "domain"
    assert topology.path("a", "b").over == "network"


def test_memory_and_gpus_of_one_host_use_their_host_links() -> None:
    topology = cluster(host("a"))
    assert topology.path("a", "a/1").over == "host_link"
    assert used(topology, "a", "a/1") == [("link_in", "a/1", 16.0)]
    assert used(topology, "a/1", "a") == [("link_out", "a/1", 16.0)]


def test_gpus_of_one_host_and_different_domains_go_through_its_memory() -> None:
    lone = host("a")
    apart = [msgspec.structs.replace(gpu, domain=gpu.id) for gpu in lone.gpus]
    topology = cluster(msgspec.structs.replace(lone, gpus=apart), domains=("a/0", "a/1"))
    assert used(topology, "a/0", "a/1") == [("link_out", "a/0", 16.0), ("link_in", "a/1", 16.0)]


def test_gpus_without_a_nic_share_their_hosts() -> None:
    topology = cluster(host("a"), host("b"))
    assert used(topology, "a/0", "b/1") == [("nic_out", "a", 20.0), ("nic_in", "b", 10.0)]
    assert set(used(topology, "a/1", "b")) & set(used(topology, "a/0", "b")) == {
        ("nic_out", "a", 20.0),
        ("nic_in", "b", 10.0),
    }


def test_gpus_with_a_nic_use_their_own() -> None:
    topology = cluster(host("a", nic=5.0), host("b", nic=6.0))
    assert used(topology, "a/0", "b/1") == [("nic_out", "a/0", 10.0), ("nic_in", "b/1", 6.0)]
    assert used(topology, "a", "b/1") == [("nic_out", "a", 20.0), ("nic_in", "b/1", 6.0)]
    assert topology.path("a/0", "b/1").rate == 6.0


def test_between_leaves_a_flow_uses_both_uplinks_where_they_block() -> None:
    leaves = (Leaf(id="left", uplink_in=7.0, uplink_out=8.0), Leaf(id="right", uplink_in=3.0), Leaf(id="free"))
    topology = cluster(host("a", leaf="left"), host("b", leaf="right"), host("c", leaf="free"), leaves=leaves)
    assert used(topology, "a", "b")[1:3] == [("uplink_out", "left", 8.0), ("uplink_in", "right", 3.0)]
    assert used(topology, "b", "a")[1:-1] == [("uplink_in", "left", 7.0)]
    assert used(topology, "b", "c")[1:-1] == []
    assert topology.path("a", "b").rate == 3.0


def test_nothing_limits_a_flow_that_stays_where_it_is() -> None:
    path = cluster(host("a")).path("a/0", "a/0")
    assert (path.over, path.resources, path.rate) == ("local", (), float("inf"))


@settings(max_examples=40)
@given(topologies())
def test_every_two_places_have_a_path_of_positive_rate_and_its_way_back(topology: Topology) -> None:
    opposite = {"out": "in", "in": "out"}

    def mirrored(resource: Resource) -> tuple[str, str]:
        kind, _, direction = resource.kind.rpartition("_")
        return f"{kind}_{opposite[direction]}", resource.owner

    ids = list(topology.places)
    assert set(ids) == {host.id for host in topology.hosts} | {gpu.id for gpu in topology.gpus}
    for sender in ids[:6]:
        for receiver in ids[-6:]:
            there, back = topology.path(sender, receiver), topology.path(receiver, sender)
            assert there.rate > 0
            assert there.over == back.over
            assert len({(each.kind, each.owner) for each in there.resources}) == len(there.resources)
            nics = [each for each in there.resources if each.kind.startswith(("nic", "domain", "link"))]
            assert {(each.kind, each.owner) for each in nics} <= {mirrored(each) for each in back.resources}
