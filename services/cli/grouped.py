"""A command whose many options are shown in groups."""

from collections.abc import Callable, Mapping, Sequence

import click


class GroupedCommand(click.Command):
    """`groups`: names of parameters by the title of their group; the option that asks for help comes last."""

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
