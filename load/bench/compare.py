"""`livescale bench compare` shows what two runs of a bench measured, side by side, from the lines that they printed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from livescale.load.bench.record import Record

MACHINE = "machine"


class RecordsError(ValueError):
    """A file that holds no records of a bench; the message names file and line."""


class BenchLine(msgspec.Struct, frozen=True):
    """What all lines of a bench have in common: the bench, and the case or `machine`."""

    bench: str
    case: str


class MachineLine(msgspec.Struct, frozen=True):
    """The machine of a run, as far as it is compared. Lines of earlier releases may lack it."""

    cpu: str = ""
    cores: int = 0

    def __str__(self) -> str:
        return f"{self.cpu}, {self.cores} cores"


@dataclass
class Recorded:
    """The records of a file by what they measure, and the machines that they were measured on."""

    records: dict[tuple[str, str, str], Record] = field(default_factory=dict)
    machines: set[MachineLine] = field(default_factory=set)


class Comparison(msgspec.Struct, frozen=True):
    """One case of both files. What only one of them has is None in the other, and has no ratio.

    `ratio` is after / before: whether more is better depends on the unit.
    """

    bench: str
    case: str
    unit: str
    before: float | None
    after: float | None
    ratio: float | None


def read_records(path: Path) -> Recorded:
    """Read the lines that a bench printed on stdout. Where a case stands twice the later line counts.

    Fields that are not known are passed over, so that files of other releases are read. Raises RecordsError.
    """
    try:
        return parse_records(path.read_text(encoding="utf-8").splitlines(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise RecordsError(f"{path}: not a readable file of records: {error}") from error


def parse_records(lines: Iterable[str], name: str) -> Recorded:
    """The records in these lines; `name` names the file in errors. Raises RecordsError."""
    found = Recorded()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            if msgspec.json.decode(line, type=BenchLine).case == MACHINE:
                found.machines.add(msgspec.json.decode(line, type=MachineLine))
            else:
                record = msgspec.json.decode(line, type=Record)
                found.records[record.bench, record.case, record.unit] = record
        except msgspec.DecodeError as error:
            raise RecordsError(f"{name}, line {number}: not a record of a bench: {error}") from None
    if not found.records:
        raise RecordsError(f"{name}: no record of a bench in it; write one with `livescale bench NAME > FILE`")
    return found


def compare_records(before: Recorded, after: Recorded) -> Iterator[Comparison]:
    """Every case of either file, in the order in which they were measured."""
    for key in dict.fromkeys([*before.records, *after.records]):
        old, new = (each.records[key].value if key in each.records else None for each in (before, after))
        yield Comparison(*key, old, new, new / old if old and new is not None else None)


@click.command()
@click.argument("before", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("after", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def compare(before: Path, after: Path) -> None:
    """Show what two runs of a bench measured, side by side.

    BEFORE and AFTER hold what a bench printed on stdout. A ratio is after / before; whether more is better depends on
    the unit.

    \b
    livescale bench zigzag > before.jsonl
    livescale bench zigzag > after.jsonl
    livescale bench compare before.jsonl after.jsonl
    """
    try:
        old, new = read_records(before), read_records(after)
    except RecordsError as error:
        raise click.ClickException(str(error)) from None
    console = Console(stderr=True)
    table = Table("bench", "case", "unit", "before", "after", "ratio")
    for each in compare_records(old, new):
        click.echo(msgspec.json.encode(each))
        figures = (each.before, each.after, each.ratio)
        table.add_row(each.bench, each.case, each.unit, *("" if one is None else f"{one:.4g}" for one in figures))
    console.print(table)
    if old.machines != new.machines:
        told = [" and ".join(sorted(map(str, each.machines))) or "an unknown machine" for each in (old, new)]
        console.print(
            f"Warning: measured on {told[0]}, then on {told[1]}: compare ratios within a run.", highlight=False
        )
