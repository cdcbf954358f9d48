"""The output that all benches share: a JSON line for each case and one for the machine on stdout; progress and a table
on stderr."""

from collections.abc import Mapping

import click
import msgspec
from rich.console import Console
from rich.table import Table

from livescale.load.bench.samples import Counts, Samples
from livescale.load.hardware import Hardware, HardwareWatch


class Conditions(msgspec.Struct, frozen=True):
    """What a reader of the figures has to know."""

    hardware: Hardware
    samples: Counts

    def lines(self) -> list[str]:
        return [*self.hardware.lines(), *self.samples.lines()]

    def as_line(self, bench: str) -> dict[str, object]:
        """The machine's JSON line, which follows those of the cases."""
        hardware, samples = (msgspec.structs.asdict(each) for each in (self.hardware, self.samples))
        return {"bench": bench, "case": "machine", **hardware, "samples": samples["taken"], "again": samples["again"]}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One case. `against`: what `value` is measured against in the same run, in the same unit; `ratio` is
    value / against, `bar` its limit, and `ok` whether it was kept (null without a bar)."""

    bench: str
    case: str
    value: float
    unit: str
    against: float | None = None
    ratio: float | None = None
    bar: float | None = None
    ok: bool | None = None


def measured(
    bench: str,
    case: str,
    value: float,
    unit: str,
    against: float | None = None,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    within: float | None = None,
) -> Record:
    """A record with its ratio to `against` and the verdict of at most one bar on that ratio.

    `within`: so far from 1 it may be, to either side; the bar is then the upper one.
    """
    ratio = value / against if against else None
    bar, ok = at_most if at_least is None else at_least, None
    if within is not None:
        bar = 1 + within
    if ratio is not None and within is not None:
        ok = abs(ratio - 1) <= within
    elif ratio is not None and bar is not None:
        ok = ratio >= bar if at_least is not None else ratio <= bar
    return Record(bench=bench, case=case, value=value, unit=unit, against=against, ratio=ratio, bar=bar, ok=ok)


class RecordPrinter:
    """Prints records as they come, and the table at the end."""

    def __init__(self, bench: str) -> None:
        self.bench = bench
        self.records: list[Record] = []
        self.samples = Samples(self.progress)
        self._watch = HardwareWatch()
        self._console = Console(stderr=True)

    def progress(self, text: str) -> None:
        self._console.print(text, style="dim", highlight=False)

    def emit(self, record: Record, *, in_table: bool = True) -> None:
        if in_table:
            self.records.append(record)
        click.echo(msgspec.json.encode(_rounded(msgspec.structs.asdict(record))))

    def conditions(self) -> Conditions:
        """The conditions of everything that was measured so far."""
        return Conditions(self._watch.seen(), self.samples.counts())

    def finish(self) -> bool:
        """Print the machine and the table; whether every bar was kept, and the run is not void."""
        conditions = self.conditions()
        click.echo(msgspec.json.encode(_rounded(conditions.as_line(self.bench))))
        table = Table("case", "value", "unit", "against", "ratio", "bar", "ok", title=f"bench {self.bench}")
        for record in self.records:
            figures = (record.value, record.unit, record.against, record.ratio, record.bar)
            verdict = {None: "", True: "yes", False: "[red]NO[/red]"}[record.ok]
            table.add_row(record.case, *map(_shown, figures), verdict)
        self._console.print(table)
        for line in conditions.lines():
            self._console.print(line, highlight=False, soft_wrap=True)
        return all(record.ok is not False for record in self.records) and not conditions.samples.is_void


def _rounded(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in fields.items()}


def _shown(figure: float | str | None) -> str:
    if figure is None:
        return ""
    return figure if isinstance(figure, str) else f"{figure:.4g}"
