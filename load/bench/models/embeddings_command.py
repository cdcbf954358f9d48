"""`livescale bench embeddings`: vectors of an encoder beside sentence-transformers, on one core."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from livescale.load.bench.engine.processes import EngineProcessFailed
from livescale.load.bench.models.embeddings import embedding_rows, measure_embeddings
from livescale.load.bench.page import render_bench
from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.run import kernels_option, report_option, rounds_option
from livescale.load.kept import KEPT, kept_model
from livescale.load.sizes import Size
from livescale.services.worker.engine.kernels.variants import KernelsName

BENCH = "embeddings"
LOG = KEPT / "bench-embeddings.log"
SIZES: dict[str, Size] = {"30m": "small", "120m": "medium"}


@click.command()
@click.option(
    "--sizes",
    type=click.Choice(list(SIZES)),
    multiple=True,
    default=("120m",),
    envvar="LIVESCALE_SIZES",
    show_envvar=True,
    show_default=True,
    help="Sizes of the model, in parameters; may be given several times.",
)
@rounds_option(5)
@kernels_option("Kernels of this engine, as in `livescale run worker --help`.")
@report_option("livescale-embeddings.html")
def embeddings(sizes: Sequence[str], rounds: int, kernels: KernelsName, report: Path) -> None:
    """Compare encoders' vectors with sentence-transformers, on one core.

    Each has one thread, computes in bfloat16 and gets the same token ids; they run in turn. Rates are texts a second of
    CPU time. sentence-transformers is one of the peers that `make bench-peers` installs.
    """
    printer = RecordPrinter(BENCH)
    LOG.parent.mkdir(parents=True, exist_ok=True)
    try:
        with LOG.open("w", encoding="utf-8") as log:
            for size in sizes:
                checkpoint = kept_model(SIZES[size], printer.progress, "bert")
                run = measure_embeddings(checkpoint, kernels, rounds, log, printer.progress)
                for record in embedding_rows(BENCH, size, run):
                    printer.emit(record)
    except EngineProcessFailed as error:
        raise click.ClickException(f"{error}\nIts log is {LOG}") from None
    kept = printer.finish()
    intro = f"Medians of {rounds} rounds, in bfloat16, on one core."
    report.write_text(render_bench("Embeddings", intro, [], printer.records, printer.conditions()))
    printer.progress(f"Report: {report}")
    sys.exit(0 if kept else 1)
