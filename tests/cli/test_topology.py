"""`livescale topology`: a table, JSON, a picture, and clear refusals."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner, Result

from livescale.services.cli.main import cli
from livescale.services.cli.topology import EPILOG, gpu_rows, host_rows, leaf_rows, name_all, summary
from livescale.shared.topology.file import find_topology, read_topology
from livescale.shared.topology.topology import Topology

HOST = "memory: 64 GiB, nic: 100 Gbps, disk: 1 GB/s"
GPU = "memory: 1 GiB, host-link: 8 GB/s"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["topology", *words])


def test_a_shipped_topology_is_shown_by_its_name() -> None:
    output = run("cluster-a").output
    assert "cluster-a: 4 hosts, 32 GPUs, 4 scale-up domains, 1 leaf" in output
    assert "a0-a3  4      leaf0  1 TiB   100 Gbps  1.25 GB/s" in output


def test_without_a_name_this_machine_is_shown_with_what_is_assumed() -> None:
    result = run()
    assert result.exit_code == 0
    assert "1 host, " in result.output
    assert "assumed: disk: 500 MB/s" in result.output


def test_json_is_the_whole_topology() -> None:
    assert msgspec.json.decode(run("cluster-b", "--json").output, type=Topology) == find_topology("cluster-b")


def test_the_file_in_the_help_is_one_that_can_be_read(tmp_path: Path) -> None:
    example = EPILOG.partition("\b\n")[2].partition("\n\n")[0]
    path = tmp_path / "lab.yaml"
    path.write_text(dedent(example))
    topology = read_topology(path)
    assert [host.leaf for host in topology.hosts][3:5] == ["leaf0", "leaf1"]
    assert topology.hosts[-1].id == "a15"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("hosts: [{nam: a}]", "lab.yaml: unknown key 'nam' in hosts[0]; did you mean 'name'?"),
        ("hosts: []", "lab.yaml: hosts: there is none"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(content)
    result = run(str(path))
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_an_unknown_name_is_refused_with_those_that_are_shipped() -> None:
    result = run("cluster-z")
    assert result.exit_code == 2
    assert "no topology 'cluster-z'; give a YAML file or one of cluster-a, cluster-b" in result.output


def test_the_table_needs_neither_torch_nor_matplotlib() -> None:
    code = """
import sys
from livescale.services.cli.main import main
sys.argv = ["livescale", "topology", "cluster-a"]
try:
    main()
except SystemExit:
    pass
raise SystemExit(bool({"torch", "matplotlib"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_it_is_drawn_into_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    assert run("cluster-a", "--svg", str(path)).exit_code == 0
    assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    result = run("cluster-a", "--svg", str(tmp_path / "none" / "a.svg"))
    assert result.exit_code == 1
    assert "a.svg: No such file or directory" in result.output


def read(text: str, tmp_path: Path) -> Topology:
    path = tmp_path / "lab.yaml"
    path.write_text(text)
    return read_topology(path)


def test_equal_hosts_are_one_row() -> None:
    [row] = host_rows(find_topology("cluster-a"))
    assert (row.hosts, row.count, row.leaf, row.memory) == ("a0-a3", 4, "leaf0", "1 TiB")
    assert (row.nic, row.disk) == ("100 Gbps", "1.25 GB/s")
    [gpus] = gpu_rows(find_topology("cluster-a"))
    assert (gpus.hosts, gpus.gpus, gpus.memory, gpus.nic) == ("a0-a3", "0-7", "80 GB", "100 Gbps")
    assert (gpus.host_link, gpus.domain) == ("16 GB/s", "8 joined, 200 GB/s")


def test_gpus_without_a_nic_and_alone_say_so() -> None:
    [gpus] = gpu_rows(find_topology("lambdascale-1"))
    assert (gpus.nic, gpus.domain) == ("the host's", "each alone")


def test_gpus_that_are_alone_are_one_row(tmp_path: Path) -> None:
    [row] = gpu_rows(read(f"hosts: [{{name: a, {HOST}, gpus: [{{count: 4, {GPU}}}]}}]", tmp_path))
    assert (row.gpus, row.domain) == ("0-3", "each alone")


def test_two_domains_of_one_host_are_two_rows(tmp_path: Path) -> None:
    entry = f"{{count: 2, {GPU}, scale-up: 50 GB/s}}"
    rows = gpu_rows(read(f"hosts: [{{name: a, count: 9, {HOST}, gpus: [{entry}, {entry}]}}]", tmp_path))
    assert [(row.hosts, row.gpus, row.domain) for row in rows] == [
        ("a0-a8", "0-1", "2 joined, 50 GB/s"),
        ("a0-a8", "2-3", "2 joined, 50 GB/s"),
    ]


def test_hosts_whose_gpus_share_domains_are_one_row_whatever_the_domain(tmp_path: Path) -> None:
    text = f"""
domains: [{{name: rack, count: 2, bandwidth: 900 GB/s}}]
hosts: [{{name: a, count: 4, {HOST}, gpus: [{{count: 2, {GPU}, domain: rack}}]}}]
"""
    [row] = gpu_rows(read(text, tmp_path))
    assert (row.hosts, row.domain) == ("a0-a3", "4 joined, 900 GB/s across hosts")


def test_a_host_that_differs_has_a_row_of_its_own(tmp_path: Path) -> None:
    other = HOST.replace("100 Gbps", "10 Gbps")
    text = f"hosts: [{{name: a, count: 2, {HOST}}}, {{name: b, {other}}}, {{name: c, {HOST}}}]"
    rows = host_rows(read(text, tmp_path))
    assert [(row.hosts, row.count, row.nic) for row in rows] == [("a0-a1 c", 3, "100 Gbps"), ("b", 1, "10 Gbps")]
    assert gpu_rows(read(text, tmp_path)) == []


def test_250_hosts_are_a_row_and_so_are_their_leaves(tmp_path: Path) -> None:
    text = f"leaves: [{{name: leaf, count: 16, uplink: 1.6 Tbps}}]\nhosts: [{{name: a, count: 250, {HOST}}}]"
    topology = read(text, tmp_path)
    assert [(row.hosts, row.leaf) for row in host_rows(topology)] == [("a0-a249", "leaf0-leaf15")]
    assert [(row.leaves, row.count, row.uplink) for row in leaf_rows(topology)] == [("leaf0-leaf15", 16, "1.6 Tbps")]
    assert summary(topology) == "250 hosts, 0 GPUs, 0 scale-up domains, 16 leaves"


def test_directions_that_differ_are_both_said(tmp_path: Path) -> None:
    text = """
leaves: [{name: l, uplink-out: 10 Gbps}]
hosts: [{name: a, memory: 1 GiB, nic-in: 2 Gbps, nic-out: 1 Gbps, disk: 1 GB/s}]
"""
    topology = read(text, tmp_path)
    assert host_rows(topology)[0].nic == "in 2 Gbps, out 1 Gbps"
    assert leaf_rows(topology)[0].uplink == "in non-blocking, out 10 Gbps"


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["a0", "a1", "a2"], "a0-a2"),
        (["a0"], "a0"),
        (["a0", "a2", "a3", "b"], "a0 a2-a3 b"),
        (["a", "b", "c"], "a b c"),
        (["a1", "b2", "b3"], "a1 b2-b3"),
        (["a01", "a02", "a10"], "a01-a02 a10"),
        (["a9", "a10", "a11"], "a9-a11"),
        (["0", "1"], "0-1"),
        ([], ""),
    ],
)
def test_runs_of_names_are_shortened(ids: list[str], said: str) -> None:
    assert name_all(ids) == said
