"""The command `livescale make-model`, apart from `make_model` so that `--help` imports no torch."""

from functools import partial
from pathlib import Path
from typing import get_args

import click

from livescale.load.sizes import Quantized, Size
from livescale.shared.messages.parameters import Family
from livescale.shared.model.architectures import model_types

option = partial(click.option, show_default=True, show_envvar=True)


EPILOG = """\b
Examples:
  livescale make-model /tmp/tiny --family llama --size tiny
  livescale make-model /tmp/taught --size tiny --teach examples/transcripts.jsonl
"""


@click.command("make-model", epilog=EPILOG)
@click.argument("directory", type=click.Path(path_type=Path))
@option(
    "--family",
    type=click.Choice(model_types()),
    default="llama",
    envvar="LIVESCALE_FAMILY",
    help="Architecture of the model.",
)
@option(
    "--size",
    type=click.Choice(get_args(Size)),
    default="small",
    envvar="LIVESCALE_SIZE",
    help="Number of parameters, see above.",
)
@option(
    "--seed",
    type=int,
    default=0,
    envvar="LIVESCALE_SEED",
    help="Seed of the random parameters.",
)
@option(
    "--teach",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    envvar="LIVESCALE_TEACH",
    help="JSON lines of conversations, as clients send them, whose answers the model learns by heart; tiny only.",
)
@option(
    "--quantize",
    type=click.Choice(get_args(Quantized)),
    envvar="LIVESCALE_QUANTIZE",
    help="Quantize the matrices of layers: int4 in groups, int8 by output, fp8 in blocks; experts of gpt_oss: mxfp4.",
)
def make_model_command(
    directory: Path, family: Family, size: Size, seed: int, teach: Path | None, quantize: Quantized | None
) -> None:
    """Make a checkpoint with random parameters, a tokenizer and a chat template in DIRECTORY.

    The size tiny has about 1M parameters, small 30M, medium 120M and large 500M. Of a model with experts, the
    parameters that one token uses are counted. light-kv has 50M parameters, and its KV is as light beside them as that
    of an 8B model: all parameters weigh as much as the KV of 122,000 tokens. In the other sizes KV is 6 to 16 times as
    heavy. The same seed makes the same bytes.

    With --teach a tiny model learns conversations until it repeats each answer, which takes a core some seconds. Its
    chat template then knows tools and reasoning. See examples/transcripts.jsonl.
    """
    if teach is not None and size != "tiny":
        raise click.UsageError("--teach is for --size tiny; a larger model would take too long.")
    # Torch takes seconds to import, and --help does not need it.
    from livescale.load.make_model import make_model
    from livescale.load.teach import BadTranscripts

    try:
        made = make_model(directory, family, size, seed, teach, partial(click.echo, err=True), quantize)
    except (OSError, BadTranscripts, ValueError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(made)
