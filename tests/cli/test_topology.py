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
from livescale.services.cli.topology import EPILOG
from livescale.shared.topology.file import find_topology, read_topology
from livescale.shared.topology.topology import Topology


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
