"""How a bench runs: the options that several have, the systems that it starts, its report and its exit status."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

import click

from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.system import Launcher
from livescale.load.kept import kept_model, logged
from livescale.load.report import check_report_path
from livescale.load.sizes import Size
from livescale.services.worker.engine.kernels.variants import KernelsName

T = TypeVar("T")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def rounds_option(default: int, help: str = "Number of rounds; their medians count.") -> Decorator:
    """`--rounds`: how often each case is measured, at least once."""
    return click.option(
        "--rounds",
        type=click.IntRange(1),
        default=default,
        show_default=True,
        envvar="LIVESCALE_ROUNDS",
        show_envvar=True,
        help=help,
    )


def kernels_option(help: str) -> Decorator:
    """`--kernels`, those that the engine is measured with."""
    return click.option(
        "--kernels",
        type=click.Choice(get_args(KernelsName)),
        default="auto",
        show_default=True,
        envvar="LIVESCALE_KERNELS",
        show_envvar=True,
        help=help,
    )


def report_option(name: str) -> Decorator:
    """`--report`, by default a file that is called so. A path that cannot be written to is refused at once."""

    def checked(_context: click.Context, _option: click.Parameter, path: Path) -> Path:
        check_report_path(path)
        return path

    return click.option(
        "--report",
        type=click.Path(path_type=Path, dir_okay=False),
        default=Path(name),
        callback=checked,
        show_default=True,
        envvar="LIVESCALE_REPORT",
        show_envvar=True,
        help="File to write the HTML report to.",
    )


@contextmanager
def measuring(printer: RecordPrinter) -> Iterator[Launcher]:
    """Start the systems of a bench by what this yields. Their processes' lines go to a file, and what fails becomes a
    ClickException, which is one line with a remedy."""
    try:
        with logged() as echo:
            yield Launcher(printer.progress, echo)
    except BenchFailed as error:
        raise click.ClickException(str(error)) from None


def run_bench(
    bench: str,
    size: Size,
    report: Path,
    measure: Callable[[RecordPrinter, Path, Launcher], T],
    write: Callable[[T, RecordPrinter], None],
) -> NoReturn:
    """Measure with a kept checkpoint of this size, write the report, and end with status 0 if every bar was kept.

    `measure` takes the checkpoint, and what starts systems. Raises ClickException.
    """
    printer = RecordPrinter(bench)
    checkpoint = kept_model(size, printer.progress)
    with measuring(printer) as launcher:
        done = measure(printer, checkpoint, launcher)
    kept = printer.finish()
    write(done, printer)
    printer.progress(f"Report: {report}")
    sys.exit(0 if kept else 1)
