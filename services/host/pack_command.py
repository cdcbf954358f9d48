"""`livescale pack` writes a checkpoint's packed form before a host needs it."""

import sys
from functools import partial
from typing import get_args

import click

from livescale.shared.messages.parameters import DType, Layout
from livescale.shared.model.sharding import MOST_SHARDS

option = partial(click.option, show_default=True, show_envvar=True)


@click.command()
@click.argument("checkpoint", metavar="DIRECTORY|HUB_ID")
@option("--dtype", type=click.Choice(get_args(DType)), default="bfloat16", envvar="LIVESCALE_DTYPE")
@option(
    "--packed-dir",
    default="",
    envvar="LIVESCALE_PACKED_DIR",
    help="The directory that hosts are told; by default beside the checkpoint.",
)
@option(
    "--layout",
    type=click.Choice(get_args(Layout)),
    default="plain",
    envvar="LIVESCALE_LAYOUT",
    help="How matrices are laid out, as when the model is registered; panels are for workers on CPUs.",
)
@option(
    "--tensor-parallel-size",
    type=click.IntRange(1, MOST_SHARDS),
    default=1,
    envvar="LIVESCALE_TENSOR_PARALLEL_SIZE",
    help="The number of workers of an instance.",
)
def pack(checkpoint: str, dtype: DType, packed_dir: str, layout: Layout, tensor_parallel_size: int) -> None:
    """Write the form of a checkpoint that hosts read fastest, as they do themselves after they read it first.

    It takes as much room again as the parameters have in DTYPE, and is out of date as soon as the checkpoint changes:
    hosts see that, and write it anew.
    """
    # Torch takes seconds to import, and --help does not need it.
    from livescale.services.host.stored import open_stored
    from livescale.shared.model.checkpoint import CheckpointError, resolve_model_path

    try:
        path = resolve_model_path(checkpoint)
        stored = open_stored(path, dtype, tensor_parallel_size, layout, keep=True, packed_dir=packed_dir)
        try:
            with click.progressbar(length=sum(stored.sizes), label="Packing", file=sys.stderr) as bar:
                packed = stored.pack(bar.update)
        finally:
            stored.close()
    except (CheckpointError, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(packed)
