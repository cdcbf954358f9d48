"""Topology files: what an operator may write, and what he is told when it is wrong."""

import time
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given, settings

from livescale.shared.runtime.yaml_file import kebab
from livescale.shared.topology.file import TopologyFile, expand, find_topology, read_topology, shipped_topologies
from livescale.shared.topology.topology import Topology
from tests.shared.topology.topologies import topology_files

HOST = "memory: 64 GiB, nic: 100 Gbps, disk: 1 GB/s"
GPUS = "gpus: [{count: 2, memory: 1 GiB, host-link: 8 GB/s, scale-up: 50 GB/s}]"


def read(text: str, tmp_path: Path) -> Topology:
    path = tmp_path / "lab.yaml"
    path.write_text(text)
    return read_topology(path)


def refusal(text: str, tmp_path: Path) -> str:
    with pytest.raises(ValueError, match=r"lab\.yaml: ") as refused:
        read(text, tmp_path)
    return str(refused.value)


def test_a_short_file_is_a_cluster(tmp_path: Path) -> None:
    topology = read(f"hosts: [{{name: a, count: 3, {HOST}, {GPUS}}}]", tmp_path)
    assert topology.name == "lab"
    assert [host.id for host in topology.hosts] == ["a0", "a1", "a2"]
    assert [gpu.id for gpu in topology.gpus][:3] == ["a0/0", "a0/1", "a1/0"]
    assert {host.leaf for host in topology.hosts} == {"leaf0"}
    assert topology.place_of("a2/1").domain_bandwidth == 50e9
    assert topology.place_of("a2/1").nic_in == 12.5e9


def test_an_entry_without_count_is_one_thing_of_that_name(tmp_path: Path) -> None:
    assert [host.id for host in read(f"hosts: [{{name: big, {HOST}}}]", tmp_path).hosts] == ["big"]


def test_hosts_are_dealt_to_the_leaves_of_an_entry_in_order_and_evenly(tmp_path: Path) -> None:
    text = f"leaves: [{{name: leaf, count: 3, uplink: 400 Gbps}}]\nhosts: [{{name: a, count: 250, {HOST}}}]"
    topology = read(text, tmp_path)
    leaves = [host.leaf for host in topology.hosts]
    assert leaves == sorted(leaves)
    assert [leaves.count(leaf) for leaf in ("leaf0", "leaf1", "leaf2")] == [84, 83, 83]
    assert topology.place_of("a0").uplink_out == 50e9


def test_a_host_may_name_one_leaf_of_an_entry(tmp_path: Path) -> None:
    text = f"leaves: [{{name: leaf, count: 3}}]\nhosts: [{{name: a, count: 2, leaf: leaf1, {HOST}}}]"
    assert [host.leaf for host in read(text, tmp_path).hosts] == ["leaf1", "leaf1"]


def test_a_declared_domain_joins_gpus_of_several_hosts(tmp_path: Path) -> None:
    text = f"""
domains: [{{name: rack, count: 2, bandwidth: 900 GB/s}}]
hosts: [{{name: a, count: 4, {HOST}, gpus: [{{count: 2, memory: 1 GiB, host-link: 8 GB/s, domain: rack}}]}}]
"""
    topology = read(text, tmp_path)
    assert [gpu.domain for gpu in topology.gpus] == ["rack0"] * 4 + ["rack1"] * 4
    assert topology.path("a0/0", "a1/0").over == "domain"
    assert topology.path("a1/0", "a2/0").over == "network"


def test_gpus_of_one_host_may_be_of_several_domains_or_none(tmp_path: Path) -> None:
    entry = "{count: 2, memory: 1 GiB, host-link: 8 GB/s, scale-up: 50 GB/s}"
    alone = "{count: 2, memory: 1 GiB, host-link: 8 GB/s}"
    topology = read(f"hosts: [{{name: a, {HOST}, gpus: [{entry}, {entry}, {alone}]}}]", tmp_path)
    assert [gpu.domain for gpu in topology.gpus] == ["a.0", "a.0", "a.1", "a.1", "a/4", "a/5"]
    assert topology.path("a/0", "a/2").over == "host_link"
    assert topology.path("a/4", "a/5").over == "host_link"


def test_directions_may_differ(tmp_path: Path) -> None:
    text = """
leaves: [{name: leaf0, uplink: 10 GB/s, uplink-out: 5 GB/s}]
hosts: [{name: a, memory: 64 GiB, nic-in: 2 GB/s, nic-out: 1 GB/s, disk: 1 GB/s}]
"""
    place = read(text, tmp_path).place_of("a")
    assert (place.nic_in, place.nic_out, place.uplink_in, place.uplink_out) == (2e9, 1e9, 10e9, 5e9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts: []", "hosts: there is none"),
        ("", "hosts: there is none"),
        ("- a", "must be a mapping, not list"),
        ("host: []", "unknown key 'host'; did you mean 'hosts'?"),
        (f"hosts: [{{name: a, {HOST}, gpu: 8}}]", "unknown key 'gpu' in hosts[0]; did you mean 'gpus'?"),
        (f"hosts: [{{name: a, {HOST}, gpus: 8}}]", "hosts[0].gpus: Expected `array`, got `int`"),
        (f"hosts: [{{{HOST}}}]", "hosts[0]: name is missing"),
        (f"hosts: [{{name: a, {HOST}}}, {{name: b, memory: 1 GiB, nic: 1 GB/s}}]", "hosts[1]: disk is missing"),
        ("hosts: [{name: a, memory: 1 GiB, disk: 1 GB/s, nic-in: 1 GB/s}]", "hosts[0]: nic is missing; give it, or"),
        (f"hosts: [{{name: a, count: 0, {HOST}}}]", "hosts[0].count: Expected `int` >= 1"),
        ("hosts: [{name: a, memory: 1 GiB, nic: 100, disk: 1 GB/s}]", "hosts[0].nic: 100 has no unit; write for"),
        ("hosts: [{name: a, memory: 1 GiB, nic: 0 Gbps, disk: 1 GB/s}]", "hosts[0].nic: '0 Gbps' is out of bounds"),
        ("hosts: [{name: a, memory: 1 GiB, nic: -1 Gbps, disk: 1 GB/s}]", "it must be more than zero"),
        ("hosts: [{name: a, memory: 1 Gbps, nic: 1 GB/s, disk: 1 GB/s}]", "hosts[0].memory: 'Gbps' in '1 Gbps' is"),
        (f"hosts: [{{name: a, count: 2, {HOST}}}, {{name: a1, {HOST}}}]", "hosts[1].name: 'a1' is the name of 2"),
        (f"hosts: [{{name: a b, {HOST}}}]", "hosts[0].name: 'a b' is not a valid name"),
        (f"hosts: [{{name: a, leaf: leaf1, {HOST}}}]", "hosts[0].leaf: there is no leaf 'leaf1'; there are leaf0"),
        (f"leaves: [{{name: x}}, {{name: y}}]\nhosts: [{{name: a, {HOST}}}]", "hosts[0]: leaf is missing; one of x, y"),
        (f"leaves: []\nhosts: [{{name: a, {HOST}}}]", "hosts[0]: leaf is missing; the file has none"),
        (f"leaves: [{{name: x}}, {{name: x}}]\nhosts: [{{name: a, leaf: x, {HOST}}}]", "leaves[1].name: 'x' is the"),
        (
            f"hosts: [{{name: a, {HOST}, gpus: [{{memory: 1 GiB, host-link: 1 GB/s, domain: rack}}]}}]",
            "hosts[0].gpus[0].domain: there is no domain 'rack'; none is declared",
        ),
        (
            f"hosts: [{{name: a, {HOST}, gpus: [{{memory: 1 GiB, host-link: 1 GB/s, nic-in: 1 GB/s}}]}}]",
            "hosts[0].gpus[0].nic: it has one direction",
        ),
        (
            "domains: [{name: d, bandwidth: 1 GB/s}]\n"
            f"hosts: [{{name: a, {HOST}, gpus: [{{memory: 1 GiB, host-link: 1 GB/s, domain: d, scale-up: 1 GB/s}}]}}]",
            "hosts[0].gpus[0]: scale-up is for a domain of these GPUs alone",
        ),
        (f"hosts: [{{name: a, {HOST}, gpus: [{{memory: 1 GiB}}]}}]", "hosts[0].gpus[0]: host-link is missing"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(text, tmp_path)


def test_a_cluster_of_250_hosts_is_a_short_file_and_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text(
        "leaves: [{name: leaf, count: 16, uplink: 1.6 Tbps}]\n"
        f"hosts: [{{name: a, count: 250, {HOST}, {GPUS.replace('count: 2', 'count: 8')}}}]"
    )
    started_at = time.process_time()
    topology = read_topology(path)
    assert len(topology.gpus) == 2000
    assert len(topology.places) == 2250
    assert time.process_time() - started_at < 5  # 0.05 s on an idle machine


@pytest.mark.parametrize(
    ("name", "hosts", "gpus"),
    [("cluster-a", 4, 8), ("cluster-b", 2, 8), ("lambdascale-1", 12, 1), ("lambdascale-2", 6, 4)],
)
def test_the_papers_clusters_are_shipped(name: str, hosts: int, gpus: int) -> None:
    topology = find_topology(name)
    assert topology.name == name
    assert [len(host.gpus) for host in topology.hosts] == [gpus] * hosts
    assert name in shipped_topologies()


def test_cluster_a_has_the_papers_rates() -> None:
    topology = find_topology("cluster-a")
    assert topology.path("a0/0", "a0/7").rate == 200e9
    assert topology.path("a0/0", "a3/7").rate == 12.5e9
    assert topology.path("a0", "a0/7").rate == 16e9
    assert topology.place_of("a0").disk == 1.25e9


def test_what_is_neither_file_nor_shipped_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no topology 'cluster-c'; give a YAML file or one of cluster-a, cluster-b"):
        find_topology("cluster-c")
    with pytest.raises(ValueError, match=r"lab\.yaml: No such file"):
        find_topology(str(tmp_path / "lab.yaml"))


@settings(max_examples=40)
@given(topology_files())
def test_a_file_that_is_written_out_reads_as_the_same_topology(
    tmp_path_factory: pytest.TempPathFactory, file: TopologyFile
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(yaml.safe_dump(written(msgspec.to_builtins(file, enc_hook=float))))
    assert read_topology(path) == expand(file, "any")


def written(value: object, key: str = "") -> object:
    """Return the topology as an operator would write it: kebab-case keys, units, and no default values."""
    match value:
        case dict():
            said = {name: each for name, each in value.items() if each not in (None, "", 0.0)}
            return {kebab(name): written(each, name) for name, each in said.items()}
        case list() | tuple():
            return [written(each) for each in value]
        case int() | float() if key != "count":
            return f"{value:.0f} B" if key == "memory" else f"{value:.0f} B/s"
        case _:
            return value
