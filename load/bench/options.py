"""The options that several benches of the engine have."""

from collections.abc import Callable
from typing import Any, get_args

import click

from livescale.services.worker.engine.kernels.variants import KernelsName

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
