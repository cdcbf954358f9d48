"""Commands are imported when they are called, and misspelt ones get a suggestion."""

import sys

import click
import pytest
from click.testing import CliRunner

from livescale.services.cli.groups import LazyCommand, LazyGroup, load_command
from livescale.services.cli.main import cli


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "livescale.services.cli.options", raising=False)
    with pytest.raises(click.ClickException, match="'yaml', which is not installed: run `make install`"):
        load_command("livescale.services.cli.options:as_yaml")


def test_a_group_imports_a_command_only_when_it_is_called() -> None:
    group = LazyGroup("group", {"broken": LazyCommand("nowhere.at_all:command", "Never loaded.")}, "Help.")
    assert "Never loaded." in CliRunner().invoke(group, ["--help"]).output
    assert "nowhere" in CliRunner().invoke(group, ["broken"]).output


@pytest.mark.parametrize(
    ("words", "meant"), [(["run", "wroker"], "worker"), (["stauts"], "status"), (["bench", "piepline"], "pipeline")]
)
def test_a_misspelt_command_is_told_the_one_that_is_like_it(words: list[str], meant: str) -> None:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert f"Did you mean {meant!r}?" in result.output


def test_a_command_like_no_other_is_refused_as_ever() -> None:
    result = CliRunner().invoke(cli, ["xyzzy"])
    assert result.exit_code == 2
    assert "No such command 'xyzzy'" in result.output
