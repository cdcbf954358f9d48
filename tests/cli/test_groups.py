"""Commands are imported when they are called, and misspelt ones get a suggestion."""

import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from livescale.services.cli.groups import PRINTING, SHARED, LazyCommand, LazyGroup, load_command
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


def test_every_option_has_an_environment_variable_and_help_shows_it() -> None:
    seen = set()
    for context in walk(cli.make_context("livescale", [], resilient_parsing=True)):
        path = tuple(context.command_path.split()[1:])
        for option in (each for each in context.command.params if isinstance(each, click.Option)):
            if option.name in PRINTING:
                continue
            assert option.envvar is not None, (path, option.name)
            assert option.show_envvar, (path, option.name)
            assert option.help, (path, option.name)
            record = option.get_help_record(context)
            assert record is None or "LIVESCALE_" in record[1], (path, option.name)
            seen.add((*path, option.name))
    assert {("status", "as_json"), ("bench", "engine", "sizes"), ("run", "worker", "arena_bytes")} <= seen


def walk(context: click.Context) -> Iterator[click.Context]:
    """A command and all below it, made as the command line makes them: a command keeps the first help option it had."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            below = context.command.get_command(context, name)
            assert below is not None
            yield from walk(below.make_context(name, [], parent=context, resilient_parsing=True))


def test_an_option_s_variable_counts_where_the_flag_is_not_given() -> None:
    variables = {"LIVESCALE_SYSTEMS_ENV": "1"}
    plain, told = (CliRunner().invoke(cli, ["systems", "allcache"], env=env).output for env in ({}, variables))
    assert "LIVESCALE_" in told
    assert "LIVESCALE_" not in plain


def test_the_variable_that_goes_first_belongs_to_one_command() -> None:
    first: dict[str, tuple[str, ...]] = {}
    for context in walk(cli.make_context("livescale", [], resilient_parsing=True)):
        path = tuple(context.command_path.split()[1:])
        if path[:1] in (("up",), ("run",)):
            continue
        for option in (each for each in context.command.params if isinstance(each, click.Option)):
            variable = option.envvar if isinstance(option.envvar, str) else next(iter(option.envvar or ()), None)
            if variable is not None and variable not in SHARED:
                assert first.setdefault(variable, path) == path, variable


def test_a_command_like_no_other_is_refused_as_ever() -> None:
    result = CliRunner().invoke(cli, ["xyzzy"])
    assert result.exit_code == 2
    assert "No such command 'xyzzy'" in result.output
