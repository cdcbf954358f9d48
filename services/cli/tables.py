"""Prints structs as tables: each struct is a row, each field a column."""

import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import msgspec

from livescale.shared.units import format_size

if TYPE_CHECKING:  # slow to import, and not needed for --help or --json
    from rich.console import Console
    from rich.table import Table

WIDE = 200
ANY_WIDTH = 10_000
HASHES = ("version", "kernels")
HASH_LETTERS = 8


def open_console() -> "Console":
    """A console for stdout. In a pipe it is wide, as ids that are cut off are of no use there."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


def print_rows(
    console: "Console", title: str, rows: Sequence[msgspec.Struct], *, quiet: AbstractSet[str] = frozenset()
) -> None:
    """Print a table of at least one row, and an empty line.

    Columns without any value are left out, and those of `quiet` that are zero everywhere. Where the console is too
    narrow, values that are the same in all rows are printed once, above.
    """
    names = [name for name in rows[0].__struct_fields__ if any(tells(row, name, quiet) for row in rows)]
    table = make_table(rows, names)
    width = console.measure(table, options=console.options.update(width=ANY_WIDTH)).maximum
    if len(rows) > 1 and width > console.width:
        same = [name for name in names[1:] if len({cell_of(row, name) for row in rows}) == 1]
        common = ", ".join(f"{heading(name)} {cell_of(rows[0], name)}" for name in same)
        names = [name for name in names if name not in same]
        title = f"{title} (all: {common})" if same else title
        table = make_table(rows, names)
    console.print(title, style="italic", markup=False)
    console.print(table)
    console.print()


def tells(row: msgspec.Struct, name: str, quiet: AbstractSet[str]) -> bool:
    value = getattr(row, name)
    return bool(value) if name in quiet else value not in (None, "", [], {})


def make_table(rows: Sequence[msgspec.Struct], names: Sequence[str]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(heading(name), overflow="fold")
    for row in rows:
        table.add_row(*(cell_of(row, name) for name in names))
    return table


def heading(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ")


def cell_of(row: msgspec.Struct, name: str) -> str:
    """The text of a cell. Sizes get units; hashes are cut to a beginning that tells them apart."""
    value = getattr(row, name)
    if name.endswith("_bytes") and isinstance(value, int):
        return format_size(value)
    if name in HASHES and isinstance(value, str):
        variant, dash, digest = value.rpartition("-")
        return variant + dash + digest[:HASH_LETTERS]
    return cell(value)


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
