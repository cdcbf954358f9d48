"""Groups of commands that are imported when they are called, and a command whose options are shown in groups.

`livescale --help` imports nothing but click.
"""

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

import click

PRINTING = {"help", "print_config", "version"}
PLAIN = {"up"}  # commands whose variables are named by the flag alone
SHARED = {"LIVESCALE_CONFIG", "LIVESCALE_NAMESPACE", "LIVESCALE_NATS_URL"}  # which mean the same in every command


class LazyCommand(NamedTuple):
    """Where a command is defined ("module:attribute"), and the line that `--help` shows of it."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group that imports a command only to run it or to show its own help."""

    def __init__(self, name: str, lazy: Mapping[str, LazyCommand], help: str) -> None:
        super().__init__(name, help=help, context_settings={"help_option_names": ["-h", "--help"]})
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        command = load_command(self._lazy[cmd_name].target)
        name_variables(command, cmd_name if ctx.parent is None else f"{ctx.info_name}-{cmd_name}")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = [] if args[0] in self._lazy else difflib.get_close_matches(args[0], self._lazy, n=1)
        if near:
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near[0]!r}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in self._lazy.items()])


def name_variables(command: click.Command, name: str) -> None:
    """Give each option the environment variable of command and flag, such as LIVESCALE_STATUS_JSON. Those that it has
    already count behind that: another command may mean something else by them.

    Options of `up` keep their variables alone, as they are those of all services, and so do options that mean the same
    in every command. Those that print something and end the command get none.
    """
    for option in command.params if name not in PLAIN else ():
        if not isinstance(option, click.Option) or option.name in PRINTING:
            continue
        flag = max((each for each in option.opts if each.startswith("--")), key=len)
        own = f"LIVESCALE_{name}_{flag.removeprefix('--')}".replace("-", "_").upper()
        others = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
        if not {own, *SHARED} & set(others):
            option.envvar, option.show_envvar = [own, *others], True


def load_command(target: str) -> click.Command:
    """The command at "module:attribute". Raises ClickException where an optional package is missing."""
    module_name, attribute = target.split(":")
    command = getattr(load_module(module_name), attribute)
    assert isinstance(command, click.Command), target
    return command


def load_module(name: str) -> ModuleType:
    """Raises ClickException where an optional package is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A module of our own that is missing is a bug and keeps its traceback.
        if (error.name or "").split(".")[0] == "livescale":
            raise
        raise click.ClickException(
            f"this command needs the package {error.name!r}, which is not installed: run `make install`, "
            "or pip install 'livescale[embedded,ucx,load]'"
        ) from None


class GroupedCommand(click.Command):
    """`groups` has the names of parameters by the title of their group. The option that asks for help comes last."""

    def __init__(
        self,
        name: str | None,
        *,
        groups: Mapping[str, Sequence[str]],
        callback: Callable[..., object],
        params: list[click.Parameter],
        help: str | None,
        epilog: str,
    ) -> None:
        super().__init__(name, callback=callback, params=params, help=help, epilog=epilog)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = {param.name: line for param in self.get_params(ctx) if (line := param.get_help_record(ctx)) is not None}
        for title, names in self.groups.items():
            with formatter.section(title):
                formatter.write_dl([shown.pop(name) for name in names])
        with formatter.section("Help"):
            formatter.write_dl(list(shown.values()))
