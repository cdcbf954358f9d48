"""What a topology is, what it refuses, and which links a flow uses in it."""

import msgspec
import pytest
from hypothesis import given, settings

from livescale.shared.topology.topology import Domain, Gpu, Leaf, Topology, TopologyError, TopologyHost
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


def test_a_place_says_what_its_links_carry() -> None:
    topology = cluster(host("a", nic=5.0))
    gpu, memory = topology.place_of("a/1"), topology.place_of("a")
    assert (gpu.host, gpu.leaf, gpu.domain, gpu.nic) == ("a", "leaf0", "a", "a/1")
    assert (gpu.nic_in, gpu.nic_out, gpu.domain_bandwidth, gpu.host_link) == (5.0, 10.0, 200.0, 16.0)
    assert (memory.domain, memory.nic, memory.nic_in, memory.host_link, memory.disk) == (None, "a", 10.0, 0.0, 1.0)
    with pytest.raises(KeyError):
        topology.place_of("z")


@pytest.mark.parametrize(
    ("hosts", "domains", "said"),
    [
        ([], (), "hosts: there is none"),
        ([host("a"), host("a")], ("a",), "host a name: 'a' is the name of 2; give each host one of its own"),
        ([host("a")], ("a", "b", "b"), "domain b name: 'b' is the name of 2"),
        ([host("a/b", domain="a")], ("a",), "host a/b name: 'a/b' is not a valid name"),
        ([host("-a", domain="a")], ("a",), "'-a' is not a valid name: begin with a letter or digit"),
        ([host("a", leaf="leaf9")], (), "host a leaf: there is no leaf 'leaf9'; there are leaf0"),
        ([host("a")], ("b", "c"), "gpu a/0 domain: there is no domain 'a'; there are b, c"),
    ],
)
def test_a_topology_that_is_not_whole_is_refused(
    hosts: list[TopologyHost], domains: tuple[str, ...], said: str
) -> None:
    with pytest.raises(TopologyError) as refused:
        cluster(*hosts, domains=domains)
    assert said in str(refused.value)


def test_a_gpu_is_called_by_its_host_and_index() -> None:
    wrong = msgspec.structs.replace(host("a"), gpus=host("b").gpus)
    with pytest.raises(TopologyError, match="gpu b/0 id: a GPU is called HOST/INDEX, so this one a/0"):
        cluster(wrong, domains=("b",))


def test_a_domain_that_joins_gpus_has_a_bandwidth() -> None:
    with pytest.raises(TopologyError, match="domain a bandwidth: it joins 2 GPUs"):
        Topology(name="test", hosts=[host("a")], domains=[Domain(id="a")], leaves=[Leaf(id="leaf0")])
    Topology(name="test", hosts=[host("a", gpus=1)], domains=[Domain(id="a")], leaves=[Leaf(id="leaf0")])


def test_a_nic_has_both_directions() -> None:
    gpus = [msgspec.structs.replace(gpu, nic_in=1.0) for gpu in host("a").gpus]
    with pytest.raises(TopologyError, match="gpu a/0 nic: it has one direction"):
        cluster(msgspec.structs.replace(host("a"), gpus=gpus))


@pytest.mark.parametrize("field", ["nic_in", "nic_out", "disk", "memory_bytes"])
def test_a_topology_that_is_decoded_has_no_link_without_a_rate(field: str) -> None:
    plain = msgspec.to_builtins(cluster(host("a")))
    for wrong in (0, -1):
        plain["hosts"][0][field] = wrong
        with pytest.raises(msgspec.ValidationError, match=field):
            msgspec.convert(plain, Topology)


@settings(max_examples=40)
@given(topologies())
def test_a_topology_that_is_encoded_and_decoded_is_the_same(topology: Topology) -> None:
    assert msgspec.json.decode(msgspec.json.encode(topology), type=Topology) == topology
