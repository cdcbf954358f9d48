"""How a bench with an HTML report runs: from the check of the report's path to the exit status."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import click

from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.samples import BenchFailed
from livescale.load.kept import kept_model, logged
from livescale.load.report import check_report_path
from livescale.load.sizes import Size
from livescale.services.supervisor.processes import Echo

T = TypeVar("T")


def run_bench(
    bench: str,
    size: Size,
    report: Path,
    measure: Callable[[RecordPrinter, Path, Echo], T],
    write: Callable[[T, RecordPrinter], None],
) -> NoReturn:
    """Measure with a kept checkpoint of this size, write the report, and end with status 0 if every bar was kept.

    `measure` takes the checkpoint, and what the lines of the processes go to. Raises ClickException.
    """
    check_report_path(report)
    printer = RecordPrinter(bench)
    checkpoint = kept_model(size, printer.progress)
    try:
        with logged() as echo:
            done = measure(printer, checkpoint, echo)
    except BenchFailed as error:
        raise click.ClickException(str(error)) from None
    kept = printer.finish()
    write(done, printer)
    printer.progress(f"Report: {report}")
    sys.exit(0 if kept else 1)
