"""The command `livescale make-adapter`, apart from `make_adapter` so that `--help` imports no torch."""

from functools import partial
from pathlib import Path

import click

from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.model.declaration.adapter import LARGEST_RANK, MATRICES

option = partial(click.option, show_default=True)


@click.command("make-adapter")
@click.argument("directory", type=click.Path(path_type=Path))
@option(
    "--model",
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The checkpoint that the adapter is for.",
)
@option("--rank", type=click.IntRange(1, LARGEST_RANK), default=8, help="Rank of the products that it adds.")
@option(
    "--alpha",
    type=click.FloatRange(min=0, min_open=True),
    default=16.0,
    help="Factor of these products, times the rank.",
)
@option(
    "--matrix",
    "matrices",
    type=click.Choice(MATRICES),
    multiple=True,
    default=MATRICES,
    help="Matrix of each layer that it adds to; may be given several times.",
)
@option("--seed", type=int, default=0, help="Seed of the random parameters.")
def make_adapter_command(
    directory: Path, model: Path, rank: int, alpha: float, matrices: tuple[str, ...], seed: int
) -> None:
    """Make a LoRA adapter with random parameters in DIRECTORY, in the format of peft.

    It is for the checkpoint of --model. The same seed makes the same bytes.

    \b
    livescale make-model /tmp/tiny --size tiny
    livescale make-adapter /tmp/mine --model /tmp/tiny
    livescale up --model tiny=/tmp/tiny --lora mine=/tmp/mine
    """
    # Torch takes seconds to import, and --help does not need it.
    from livescale.load.make_adapter import make_adapter

    try:
        click.echo(make_adapter(directory, model, rank, alpha, matrices, seed))
    except (CheckpointError, OSError) as error:
        raise click.ClickException(str(error)) from None
