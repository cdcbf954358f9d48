"""`livescale profile`: this machine's engine, measured for modelled ones."""

import asyncio
import platform
from functools import partial
from pathlib import Path
from typing import get_args

import click
import msgspec
import yaml

from livescale.shared.model.automatic_form import AskedDType, find_form

option = partial(click.option, show_default=True, show_envvar=True)


@click.command("profile")
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("latency.yaml"),
    envvar="LIVESCALE_OUTPUT",
    help="YAML file to write the profile to.",
)
@option(
    "--dtype",
    type=click.Choice(get_args(AskedDType)),
    default="bfloat16",
    envvar="LIVESCALE_DTYPE",
    help="Number type of the model; auto is what `livescale up` takes on this machine.",
)
@option(
    "--threads",
    type=click.IntRange(1, 256),
    default=1,
    envvar="LIVESCALE_THREADS",
    help="Number of threads that torch computes with.",
)
def profile(directory: Path, output: Path, dtype: AskedDType, threads: int) -> None:
    """Measure how long the checkpoint in DIRECTORY takes on this CPU, and write a profile.

    With the profile `--engine modelled` emulates this machine without computing anything.

    \b
    livescale profile /tmp/tiny --output mine.yaml
    livescale up --model tiny=/tmp/tiny --workers 16 --engine modelled --engine-profile mine.yaml
    """
    # Torch and scipy take seconds to import, and --help needs neither.
    from livescale.load.profile.measure import fit, measure, worst_error
    from livescale.shared.model.checkpoint import CheckpointError

    own_dtype, _ = find_form(dtype)
    try:
        steps = asyncio.run(measure(directory, own_dtype, threads))
        source = f"{directory.name} in {own_dtype}, {threads} of {platform.node()}'s threads"
        latency = fit(steps, source)
        output.write_text(yaml.safe_dump(msgspec.to_builtins(latency), sort_keys=False))
    except CheckpointError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written: {error.strerror}") from None
    off = worst_error(latency, steps)
    click.echo(f"{output}: fitted to {len(steps)} steps, and off by {off:.0%} at most")
