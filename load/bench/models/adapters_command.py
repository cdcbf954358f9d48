"""`livescale bench adapters`: what adapters cost a step of decoding on one core, and how long one takes to come."""

import sys

import click
import uvloop

from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.run import kernels_option, measuring, rounds_option
from livescale.load.kept import kept_model
from livescale.load.sizes import Size
from livescale.services.worker.engine.kernels.variants import KernelsName, choose_kernels

BENCH = "adapters"
FETCH_ROUNDS = 6  # of four first tokens each


@click.command()
@click.option(
    "--size",
    type=click.Choice(("small", "medium", "large")),
    default="large",
    envvar="LIVESCALE_SIZE",
    show_envvar=True,
    show_default=True,
    help="Size of the model.",
)
@rounds_option(25, "Number of steps of each kind; their medians count.")
@kernels_option("Kernels of the engine, as in `livescale run worker --help`.")
def adapters(size: Size, rounds: int, kernels: KernelsName) -> None:
    """Compare steps of decoding with adapters of rank 16 and without, on one core.

    All seven matrices are adapted. The steps are of one engine in bfloat16, in turn; their time is CPU time. Then a
    system is asked for adapters that its worker has, and for others that it fetches over a link of 100 MB/s.
    """
    # Torch takes seconds to import, and --help does not need it.
    from livescale.load.bench.models.adapter_fetches import fetch_rows, measure_fetches
    from livescale.load.bench.models.adapters import adapter_rows, measure_adapters

    printer = RecordPrinter(BENCH)
    checkpoint = kept_model(size, printer.progress, "qwen2")
    times = measure_adapters(checkpoint, choose_kernels(kernels).kernels, rounds, printer.progress)
    for record in adapter_rows(BENCH, times):
        printer.emit(record)
    with measuring(printer) as launcher:
        fetches = uvloop.run(measure_fetches(launcher, checkpoint, FETCH_ROUNDS))
    for record in fetch_rows(BENCH, fetches):
        printer.emit(record)
    sys.exit(0 if printer.finish() else 1)
