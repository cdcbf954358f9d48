"""Structs as tables: one row each, their fields as columns."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:  # slow to import, and not needed for --help or --json
    from rich.console import Console

WIDE = 200


def open_console() -> "Console":
    """Stdout. In a pipe nobody looks at the width, and cut ids are of no use."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


def print_rows(console: "Console", title: str, rows: Sequence[msgspec.Struct]) -> None:
    """A table of at least one row, and an empty line."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in rows[0].__struct_fields__:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*map(cell, msgspec.structs.astuple(row)))
    console.print(table)
    console.print()


def cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case list():
            return " ".join(map(str, value))
        case dict():
            return ", ".join(f"{key}: {each}" for key, each in value.items()) or "-"
        case float():
            return f"{value:.2f}"
        case _:
            return str(value)
