"""`livescale bench adapters`: what LoRA adapters cost a step of decoding, on one core."""

import sys

import click

from livescale.load.bench.options import kernels_option, rounds_option
from livescale.load.bench.record import RecordPrinter
from livescale.load.kept import kept_model
from livescale.load.sizes import Size
from livescale.services.worker.engine.kernels.variants import KernelsName, choose_kernels

BENCH = "adapters"


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

    All seven matrices are adapted. The steps are of one engine in bfloat16, in turn; their time is CPU time.
    """
    # Torch takes seconds to import, and --help does not need it.
    from livescale.load.bench.models.adapters import adapter_rows, measure_adapters

    printer = RecordPrinter(BENCH)
    checkpoint = kept_model(size, printer.progress, "qwen2")
    times = measure_adapters(checkpoint, choose_kernels(kernels).kernels, rounds, printer.progress)
    for record in adapter_rows(BENCH, times):
        printer.emit(record)
    sys.exit(0 if printer.finish() else 1)
