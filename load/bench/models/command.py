"""`livescale bench models`: every architecture beside transformers, experts beside a dense model, and quantized models
beside bfloat16."""

import sys
from collections.abc import Sequence
from functools import partial

import click

from livescale.load.bench.engine.processes import EngineProcessFailed
from livescale.load.bench.models.comparisons import beside_bfloat16, beside_dense, beside_transformers, with_fp8_kv
from livescale.load.bench.models.errors import compare_errors
from livescale.load.bench.models.rows import (
    BENCH,
    PAIRS,
    QUANTIZED,
    chosen_quantized,
)
from livescale.load.bench.models.scales import SCALED, compare_scales
from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.run import kernels_option, rounds_option
from livescale.load.kept import KEPT
from livescale.load.sizes import Size
from livescale.services.worker.engine.kernels.variants import KernelsName
from livescale.shared.model.architectures import find_architecture, model_types

LOG = KEPT / "bench-models.log"

WHATS = ("transformers", "errors", "dense", "bfloat16", "kv", "scales")
HOWS = tuple(how for _, how in QUANTIZED)
GENERATING = tuple(name for name in model_types() if (found := find_architecture(name)) and found.generates)

option = partial(click.option, show_default=True, show_envvar=True)


@click.command()
@option(
    "--families",
    type=click.Choice(GENERATING),
    multiple=True,
    default=GENERATING,
    envvar="LIVESCALE_FAMILIES",
    help="Architectures; may be given several times.",
)
@rounds_option(3, "Number of rounds.")
@option(
    "--size",
    type=click.Choice(("small", "medium", "large")),
    default="large",
    envvar="LIVESCALE_SIZE",
    help="Size of the models with experts, of quantized ones, and of those that they are compared with.",
)
@kernels_option("Kernels of this engine. The results to reach depend on them.")
@option(
    "--only",
    type=click.Choice((*WHATS, *HOWS)),
    multiple=True,
    default=WHATS,
    envvar="LIVESCALE_ONLY",
    help="Measurement to run; may be given several times. transformers: rates against transformers; errors: errors of "
    "logits against those of transformers; dense: experts against a dense model; bfloat16: all quantized models "
    "against bfloat16, or one of int4, int8, fp8 and mxfp4; kv: KV in fp8; scales: scale-outs.",
)
def models(families: Sequence[str], rounds: int, size: Size, kernels: KernelsName, only: Sequence[str]) -> None:
    """Compare each architecture at 120M parameters with transformers, experts with a dense model, and quantized models
    and KV with the same in bfloat16.

    Rates are tokens a second of CPU time, on one core; the engines are asked in turn. With experts, a token uses as
    many parameters as in the dense model: those of 2 of 8 experts, or of 8 of 64.
    """
    printer = RecordPrinter(BENCH)
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("w", encoding="utf-8") as log:
        try:
            for family in families if "transformers" in only else ():
                beside_transformers(printer, family, rounds, kernels, log)
            for family in families if "errors" in only else ():
                compare_errors(printer, family, kernels, log)
            if "dense" in only:
                beside_dense(printer, [pair for pair in PAIRS if {*pair} <= {*families}], rounds, size, kernels, log)
            for family, how in chosen_quantized(families, only):
                beside_bfloat16(printer, family, how, rounds, size, kernels, log)
            if "kv" in only and "qwen2" in families:
                with_fp8_kv(printer, "qwen2", rounds, size, kernels, log)
            if "scales" in only and SCALED[0] in families:
                compare_scales(printer, rounds, size)
        except EngineProcessFailed as error:
            raise click.ClickException(f"{error}; see {LOG}") from None
    sys.exit(0 if printer.finish() else 1)
