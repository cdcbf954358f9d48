"""Pictures of topologies: every host while they are few, and never more than can be looked at."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from livescale.load.pictures import INK
from livescale.load.topology_cards import MOST_CARDS, arrange
from livescale.load.topology_picture import LINE, draw_topology
from livescale.shared.topology.file import find_topology, read_topology
from livescale.shared.topology.topology import Topology
from tests.shared.topology.topologies import topologies

HOST = "memory: 64 GiB, nic: 100 Gbps, disk: 1 GB/s"
GPUS = "gpus: [{count: 8, memory: 80 GB, host-link: 16 GB/s, scale-up: 200 GB/s}]"


def read(text: str, tmp_path: Path) -> Topology:
    path = tmp_path / "lab.yaml"
    path.write_text(text)
    return read_topology(path)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_few_hosts_have_a_card_each() -> None:
    [leaf] = arrange(find_topology("cluster-a")).leaves
    assert [host.title for host in leaf.hosts] == ["a0", "a1", "a2", "a3"]
    assert leaf.hosts[0].nics == ["GPUs 8 x 100 Gbps", "memory 100 Gbps"]
    assert leaf.hosts[0].links == ["16 GB/s", "each GPU"]


def test_gpus_without_a_nic_add_no_line_to_their_hosts() -> None:
    assert arrange(find_topology("lambdascale-2")).leaves[0].hosts[0].nics == ["400 Gbps"]


def test_many_equal_hosts_have_one_card() -> None:
    [leaf] = arrange(find_topology("lambdascale-1")).leaves
    assert [(host.title, host.note) for host in leaf.hosts] == [("node0-node11", "12 equal hosts")]


def test_equal_leaves_have_one_card(tmp_path: Path) -> None:
    text = f"leaves: [{{name: leaf, count: 16, uplink: 1.6 Tbps}}]\nhosts: [{{name: a, count: 250, {HOST}, {GPUS}}}]"
    full, rest = arrange(read(text, tmp_path)).leaves
    assert (full.title, full.uplink) == ("leaf0 … leaf14 (10 leaves)", "1.6 Tbps")
    assert [(host.title, host.note) for host in full.hosts] == [("a0 … a234", "160 equal hosts, 16 a leaf")]
    assert [(host.title, host.note) for host in rest.hosts] == [("a32 … a249", "90 equal hosts, 15 a leaf")]


def test_what_is_too_much_to_look_at_is_counted(tmp_path: Path) -> None:
    kinds = ", ".join(f"{{name: h{n}, memory: {n} GiB, nic: 1 Gbps, disk: 1 GB/s}}" for n in range(1, 21))
    cards = arrange(read(f"hosts: [{kinds}]", tmp_path))
    assert len(cards.leaves[0].hosts) == MOST_CARDS
    assert cards.left_out == "8 more kinds of hosts are not drawn"


def test_a_picture_says_what_is_where_and_what_each_link_carries() -> None:
    found = texts(draw_topology(find_topology("cluster-a")))
    assert {"cluster-a", "a0", "a3", "leaf0", "GPUs 8 x 100 Gbps", "domain 200 GB/s", "16 GB/s", "1.25 GB/s"} <= set(
        found
    )
    assert found.count("7") == 4


def test_a_link_is_as_long_as_what_is_written_beside_it(tmp_path: Path) -> None:
    def height(nics: str) -> float:
        root = ElementTree.fromstring(
            draw_topology(read(f"hosts: [{{name: a, memory: 64 GiB, disk: 1 GB/s, {nics}}}]", tmp_path))
        )
        return float((root.get("height") or "").removesuffix("pt"))

    gpus = "gpus: [{memory: 80 GB, host-link: 16 GB/s, nic-in: 1 Gbps, nic-out: 2 Gbps}]"
    two, four = (
        height("nic: 1 Gbps, gpus: [{memory: 80 GB, host-link: 16 GB/s, nic: 1 Gbps}]"),
        height(f"nic-in: 1 Gbps, nic-out: 2 Gbps, {gpus}"),
    )
    assert four - two == pytest.approx(2 * LINE * 72)


def test_leaves_are_joined_by_a_spine_only_where_there_are_several(tmp_path: Path) -> None:
    two = f"leaves: [{{name: l, count: 2, uplink: 400 Gbps}}]\nhosts: [{{name: a, count: 2, {HOST}}}]"
    assert {"spine", "uplink 400 Gbps"} <= set(texts(draw_topology(read(two, tmp_path))))
    assert "spine" not in texts(draw_topology(find_topology("cluster-a")))


def test_a_picture_is_the_same_every_time_and_takes_its_colours_from_the_viewer() -> None:
    svg = draw_topology(find_topology("cluster-b"))
    assert svg == draw_topology(find_topology("cluster-b"))
    assert INK not in svg
    assert "prefers-color-scheme: dark" in svg


@settings(max_examples=10)
@given(topologies())
def test_any_topology_can_be_drawn(topology: Topology) -> None:
    assert topology.name in texts(draw_topology(topology))
