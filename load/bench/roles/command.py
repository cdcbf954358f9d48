"""`livescale bench roles`: prefill and decode at two instances, against two that do both."""

from pathlib import Path
from typing import Final

import click
import uvloop

from livescale.load.bench.roles.measure import measure
from livescale.load.bench.roles.page import write_page
from livescale.load.bench.roles.rows import (
    BENCH,
)
from livescale.load.bench.run import report_option, run_bench

SIZE: Final = "medium"


@click.command()
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Number of runs of each kind; the kinds take turns.",
)
@report_option("livescale-roles.html")
def roles(repeats: int, report: Path) -> None:
    """Compare an instance that prefills and one that decodes with two that do both.

    The processes are real, with a core for each worker. The model has 120M parameters in bfloat16. Every token is
    compared with that of an undisturbed engine.

    The mixed load is 16 prompts of 384 tokens with 128 tokens of output each. They arrive at random, the same times in
    every run: one instance would compute prompts for half of its time. So answers decode beside a prompt nearly always.
    The gap before the second token counts as any other. --tbt-ratio is 1.85, the default.

    How long KV still travels after the first token is measured with prompts of 896 tokens, one at a time. All links are
    so slow that the KV of a prompt takes half as long as its prefill.
    """
    run_bench(
        BENCH,
        SIZE,
        report,
        lambda printer, checkpoint, launcher: uvloop.run(measure(printer, checkpoint, repeats, launcher)),
        lambda done, printer: write_page(report, done, printer.records, repeats, printer.conditions()),
    )
