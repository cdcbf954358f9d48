"""The command line as a whole: help of every command, fast, without torch; errors without tracebacks."""

import resource
import subprocess
import sys
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

from livescale.services.cli.main import BENCHES, COMMANDS, cli
from livescale.services.cli.run import SUMMARIES
from livescale.services.cli.up import GROUPS, up
from livescale.services.supervisor.settings import StackSettings

EVERY_COMMAND = [
    *([name] for name in COMMANDS),
    *(["bench", name] for name in BENCHES),
    *(["run", name] for name in SUMMARIES),
]


def test_help_lists_every_command_and_says_what_to_do_first() -> None:
    output = CliRunner().invoke(cli, ["--help"]).output
    assert all(name in output for name in COMMANDS)
    assert "livescale up --model" in output


@pytest.mark.parametrize("words", EVERY_COMMAND, ids=" ".join)
def test_every_command_has_help(words: list[str]) -> None:
    result = CliRunner().invoke(cli, [*words, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage: " in result.output


def test_every_name_of_a_module_is_right() -> None:
    for command in [*COMMANDS.values(), *BENCHES.values()]:
        assert find_spec(command.target.split(":")[0]) is not None


def test_help_is_fast_and_imports_neither_torch_nor_nats() -> None:
    code = """
import sys
from livescale.services.cli.main import main
sys.argv = ["livescale", "--help"]
try:
    main()
except SystemExit:
    pass
heavy = {"torch", "nats", "msgspec", "rich", "load"} & set(sys.modules)
raise SystemExit(f"imported {heavy}" if heavy else 0)
"""
    before = children_seconds()
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert children_seconds() - before < 2  # 0.1 s on an idle machine


def children_seconds() -> float:
    """The processor time of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_of_no_command_imports_torch() -> None:
    code = f"""
import sys
from click.testing import CliRunner
from livescale.services.cli.main import cli
for words in {EVERY_COMMAND!r}:
    CliRunner().invoke(cli, [*words, "--help"])
    if "torch" in sys.modules:
        raise SystemExit(f"{{words}} imports torch")
"""
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_version_is_printed() -> None:
    output = CliRunner().invoke(cli, ["--version"]).output
    assert output.startswith("livescale, version 0.")


@pytest.mark.parametrize("words", [["serve"], ["run", "planer"], ["bench", "disk"]], ids=" ".join)
def test_an_unknown_command_is_refused_by_name(words: list[str]) -> None:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert words[-1] in result.output


@pytest.mark.parametrize("words", [[], ["up"], ["run"], ["run", "worker"], ["bench"]], ids=" ".join)
def test_h_is_help(words: list[str]) -> None:
    result = CliRunner().invoke(cli, [*words, "-h"])
    assert result.exit_code == 0
    assert result.output == CliRunner().invoke(cli, [*words, "--help"]).output


def test_every_option_of_up_is_in_one_group_of_its_help() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(str(option.name) for option in up.params)
    assert {*StackSettings.__struct_fields__, "tbt_ratio", "threads"} - {*grouped} == {"worker_options"}
    output = CliRunner().invoke(cli, ["up", "-h"]).output
    assert all(f"{title}:" in output for title in GROUPS)
    assert output.split("Help:")[1].strip().startswith("-h, --help")
