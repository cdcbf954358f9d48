"""`livescale bench simulate`: how fast simulations are, and how much memory they take."""

import sys
from pathlib import Path

import click

from livescale.load.bench.record import RecordPrinter
from livescale.load.scenario.bench.cases import Traces
from livescale.load.scenario.bench.rows import BENCH, QUICK, ROWS, BenchSizes, RowMaker, makers
from livescale.load.trace import TraceError
from livescale.load.trace_files import read_trace

FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command()
@click.option("--quick", is_flag=True, help="Run short windows and few workers; bars of time shrink with them.")
@click.option(
    "--row",
    "chosen",
    multiple=True,
    type=click.Choice(ROWS),
    help="Row to run, in place of all; may be given several times.",
)
@click.option(
    "--conversations", type=FILE, help="Trace of Azure's conversations of 2023; by default one is made up like it."
)
@click.option("--code", type=FILE, help="Trace of Azure's code completions of 2023; by default one is made up.")
def simulate(quick: bool, chosen: tuple[str, ...], conversations: Path | None, code: Path | None) -> None:
    """Measure the CPU time and memory that simulations take.

    Each run has a process of its own. Times are in CPU seconds of a core on which 10^7 rounds of an empty loop take
    0.36 s: the loop is timed before, between and after. All rows take about half an hour; each is printed as soon as
    it is there.

    \b
    livescale bench simulate --quick
    livescale bench simulate --conversations azure_conv_2023.csv --code azure_code_2023.csv
    livescale bench simulate --row idle --row workers

    The exit status is 1 if a bar was missed.
    """
    traces = Traces(conversations=conversations, code=code)
    check_traces(traces)
    printer = RecordPrinter(BENCH)
    if traces.missing():
        printer.progress(f"Made up, for want of a file: {', '.join(traces.missing())}")
    found = makers(RowMaker(QUICK if quick else BenchSizes(), traces, printer.progress))
    for name in chosen or ROWS:
        for record in found[name]():
            printer.emit(record)
    sys.exit(0 if printer.finish() else 1)


def check_traces(traces: Traces) -> None:
    """Raise UsageError where a trace cannot be read."""
    for option, path in (("--conversations", traces.conversations), ("--code", traces.code)):
        try:
            if path is not None:
                read_trace(path)
        except TraceError as error:
            raise click.UsageError(f"{option}: {error}") from None
