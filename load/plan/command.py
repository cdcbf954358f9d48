"""The command `livescale plan`: it plans a transfer for any cluster, and carries nothing out."""

import re
from itertools import islice
from pathlib import Path
from typing import get_args

import click
import msgspec

from livescale.load.plan.dry_run import DISKS, DryRun, dry_run
from livescale.load.plan.view import chain_lines, format_seconds, headline, report, send_rows
from livescale.services.cli.groups import load_module
from livescale.services.cli.tables import open_console, print_rows
from livescale.services.planner.plans.plan import CannotPlan, Policy
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.model.checkpoint import load_model_config
from livescale.shared.topology.file import find_topology
from livescale.shared.units import parse_size

# Billions of parameters: layers, of models that are known by their size.
LAYERS = {"7b": 32, "8b": 32, "13b": 40, "24b": 40, "70b": 80, "72b": 80}
BYTES_PER_PARAMETER = 2  # bfloat16
MOST_LAYERS = 10_000
MOST_ROWS = 40
MOST_LINES = 12

EPILOG = """
\b
Examples:
  livescale plan --topology cluster-a --model 8b --targets 24 --sources 4 --svg plan.svg
  livescale plan --topology lambdascale-1 --model 13b --targets 7 --policy binomial --blocks 16
  livescale plan --topology cluster-a --model 8b --targets 8 --sources a0/0,a1/0 --serving a0/0:out=5GB/s
"""


def find_block_bytes(model: str) -> tuple[int, ...]:
    """`8b`, `size=16GB,layers=32`, or a checkpoint's directory. Raises ValueError."""
    if Path(model).is_dir():
        layouts = block_layouts(load_model_config(Path(model)), "bfloat16")
        return tuple(layout.size_bytes for layout in layouts)
    if model.lower() in LAYERS:
        billions = int(model[:-1])
        return split(billions * 10**9 * BYTES_PER_PARAMETER, LAYERS[model.lower()])
    given = re.fullmatch(r"size=([^,]+),layers=(\d+)", model.replace(" ", ""))
    if given is None:
        raise ValueError(
            f"{model!r} is neither a directory nor a known size ({', '.join(LAYERS)}); give others as "
            "size=16GB,layers=32"
        )
    layers = int(given[2])
    if not 1 <= layers <= MOST_LAYERS:
        raise ValueError(f"layers={layers} is out of bounds; a model has 1 to {MOST_LAYERS}")
    return split(parse_size(given[1]), layers)


def split(size_bytes: int, layers: int) -> tuple[int, ...]:
    """Split a model into so many blocks that differ by a byte at most."""
    if size_bytes < layers:
        raise ValueError(f"{size_bytes} bytes are less than one byte for each of {layers} layers")
    size, rest = divmod(size_bytes, layers)
    return tuple(size + (index < rest) for index in range(layers))


@click.command(epilog=EPILOG)
@click.option(
    "--topology", required=True, metavar="FILE|NAME", help="The cluster; `livescale topology --help` shows the format."
)
@click.option("--model", required=True, help="A checkpoint's directory, a size such as 8b, or size=16GB,layers=32.")
@click.option("--targets", type=click.IntRange(1), required=True, help="Number of GPUs that are to get the model.")
@click.option(
    "--policy",
    type=click.Choice(get_args(Policy)),
    default="chains",
    show_default=True,
    help="How parameters reach the targets, as --plan-policy of `livescale up`.",
)
@click.option(
    "--sources",
    help="Holders of the model: a number of GPUs, or names of GPUs and hosts such as a0/0,a1, or "
    f"{DISKS} if every host has it on disk only. By default 1, or {DISKS} with the policy local.",
)
@click.option(
    "--serving",
    multiple=True,
    metavar="ID:[domain-|link-]in|out=RATE",
    help="Serving traffic that a link already carries; may be given several times. in and out are those of the NIC, "
    "domain- of the scale-up domain, link- of the link to host memory: a0/0:out=5GB/s, a0/0:domain-out=90GB/s.",
)
@click.option(
    "--blocks",
    type=click.IntRange(0),
    default=0,
    help="Number of blocks of a binomial plan; 0 chooses it.",
    show_default=True,
)
@click.option(
    "--block-ms",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Milliseconds that each block takes besides its bytes.",
)
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="SVG file to draw the plan into.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of tables, with every flow and its times."
)
def plan(
    topology: str,
    model: str,
    targets: int,
    policy: Policy,
    sources: str | None,
    serving: tuple[str, ...],
    blocks: int,
    block_ms: float,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Plan a scale-out on a cluster, and predict how long it takes. Nothing is carried out.

    The plan says which source sends which parameters to which target.
    """
    sources = sources or (DISKS if policy == "local" else "1")
    try:
        run = dry_run(
            find_topology(topology),
            find_block_bytes(model),
            targets,
            policy,
            sources,
            serving=serving,
            blocks=blocks,
            block_seconds=block_ms / 1000,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except CannotPlan as error:
        raise click.ClickException(f"no plan can be made: {error}") from None
    if as_json:
        click.echo(msgspec.json.encode(report(run)))
    else:
        show(run)
    if svg is not None:
        draw(run, svg)


def show(run: DryRun) -> None:
    console = open_console()
    console.print(f"{headline(run)}\n", highlight=False)
    rows = list(islice(send_rows(run), MOST_ROWS + 1))
    if rows:
        print_rows(console, "Flows of parameters", rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        console.print("More is in --json and in the picture (--svg).\n")
    if run.plan.policy == "chains":
        lines = chain_lines(run.plan, run.multicast.nodes)
        for number, line in enumerate(lines[:MOST_LINES], 1):
            console.print(f"chain {number}: {line}")
        if len(lines) > MOST_LINES:
            console.print(f"and {len(lines) - MOST_LINES} more chains")
    for pipeline in run.pipelines[:MOST_LINES]:
        console.print(f"pipeline {' '.join(pipeline.nodes)}: executable after {format_seconds(pipeline.ready_at)}")
    console.print(f"can serve live while loading: {' '.join(run.plan.tails[:MOST_LINES]) or 'no instance'}")
    for reason in run.plan.reasons:
        console.print(f"- {reason}")


def draw(run: DryRun, path: Path) -> None:
    picture = load_module("livescale.load.plan.picture").draw_plan(run)
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"--svg {path}: {error.strerror}") from None
