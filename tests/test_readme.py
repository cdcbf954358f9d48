"""README.md: every command of ours in it is one that the command line understands."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.services.cli.main import cli
from livescale.services.gateway.access import read_keys

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```\w*\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("livescale ")]
TARGETS = [line.split()[1] for block in BLOCKS for line in block.splitlines() if line.startswith("make ")]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_understood(line: str) -> None:
    words = shlex.split(line.removesuffix("&"), comments=True)
    # Help is shown only after the options were read.
    result = CliRunner().invoke(cli, [*words[1:], "--help"])
    assert result.exit_code == 0, result.output


def test_it_opens_with_the_two_commands() -> None:
    assert TARGETS[:2] == ["demo", "test"]


def test_every_target_of_make_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in makefile for target in TARGETS)


def test_the_example_configuration_is_understood() -> None:
    result = CliRunner().invoke(cli, ["up", "--config", str(ROOT / "examples/up.yaml"), "--print-config"])
    assert result.exit_code == 0, result.output
    assert "downscale-delay-s: 10.0" in result.output


def test_the_example_topology_is_understood() -> None:
    result = CliRunner().invoke(cli, ["topology", str(ROOT / "examples/lab.yaml")])
    assert result.exit_code == 0, result.output
    assert "2 hosts, 2 GPUs" in result.output


def test_the_example_of_keys_makes_a_file_that_is_taken_with_the_usual_umask(tmp_path: Path) -> None:
    [block] = [block for block in BLOCKS if "keys.yaml <<END" in block]
    program = "umask 022\n" + block[: block.index("livescale up")]
    subprocess.run(["bash", "-euc", program], cwd=tmp_path, check=True)
    keyring = read_keys([], str(tmp_path / "keys.yaml"))
    [alice, _] = [line.split("key: ")[1].split(",")[0] for line in (tmp_path / "keys.yaml").read_text().splitlines()]
    client = keyring.find(alice.encode())
    assert client is not None
    assert client.name == "alice"
