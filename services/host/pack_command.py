"""`livescale pack` writes a checkpoint's packed form before a host needs it."""

import sys
from functools import partial
from typing import get_args

import click

from livescale.shared.model.automatic_form import AskedDType, AskedLayout, find_form
from livescale.shared.model.sharding import MOST_SHARDS

option = partial(click.option, show_default=True, show_envvar=True)


@click.command()
@click.argument("checkpoint", metavar="DIRECTORY|HUB_ID")
@option(
    "--dtype",
    type=click.Choice(get_args(AskedDType)),
    default="bfloat16",
    envvar="LIVESCALE_DTYPE",
    help="Number type to write parameters in; auto is what `livescale up` takes on this machine.",
)
@option(
    "--packed-dir",
    default="",
    show_default=False,
    envvar="LIVESCALE_PACKED_DIR",
    help="Directory for packed forms, the same as that of hosts; by default beside the checkpoint.",
)
@option(
    "--layout",
    type=click.Choice(get_args(AskedLayout)),
    default="plain",
    envvar="LIVESCALE_LAYOUT",
    help="Order of bfloat16 matrices, the same as that of the model: plain, or panels, which `livescale up` takes for "
    "workers on CPUs; auto is what it takes on this machine.",
)
@option(
    "--tensor-parallel-size",
    type=click.IntRange(1, MOST_SHARDS),
    default=1,
    envvar="LIVESCALE_TENSOR_PARALLEL_SIZE",
    help="Number of workers that make up an instance of the model.",
)
def pack(checkpoint: str, dtype: AskedDType, packed_dir: str, layout: AskedLayout, tensor_parallel_size: int) -> None:
    """Write a checkpoint in the packed form, which hosts read fastest.

    Hosts do this themselves after they read a checkpoint for the first time. The packed form takes as much disk space
    as the parameters in their number type. When the checkpoint changes, hosts notice that and write it again.
    """
    # --help does not need them.
    from livescale.services.host.stored import open_stored
    from livescale.shared.model.checkpoint import CheckpointError, resolve_model_path

    try:
        path = resolve_model_path(checkpoint)
        form = find_form(dtype, layout)
        stored = open_stored(path, form[0], tensor_parallel_size, form[1], keep=True, packed_dir=packed_dir)
        try:
            with click.progressbar(length=sum(stored.sizes), label="Packing", file=sys.stderr) as bar:
                packed = stored.pack(bar.update)
        finally:
            stored.close()
    except (CheckpointError, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(packed)
