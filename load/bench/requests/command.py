"""`livescale bench requests`: what it costs that answers have a form, and whether they have it."""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import uvloop

from livescale.load.bench.record import RecordPrinter, measured
from livescale.load.bench.requests.parsed import measure_parsing
from livescale.load.bench.requests.steps import StepTimes, measure_steps, wide_engine
from livescale.load.bench.requests.wide import make_wide_model, make_wide_tokenizer
from livescale.load.bench.requests.written import measure_answers
from livescale.load.bench.samples import BenchFailed
from livescale.load.kept import kept_model, logged

BENCH = "requests"
ROWS = {1: 1.01, 32: 1.03}  # of a step, and how much longer it may take
MOST_P99 = 1.15
MOST_WITH_LOGPROBS = 1.02
LOGPROBS = 5


@click.command()
@click.option(
    "--steps", type=click.IntRange(10), default=400, show_default=True, help="Number of measured steps of each kind."
)
@click.option(
    "--seeds", type=click.IntRange(1), default=10, show_default=True, help="Number of answers by each schema."
)
@click.option("--schemas", type=click.IntRange(1), default=50, show_default=True, help="Number of schemas.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A tokenizer.json of 131,072 tokens; by default one is made.",
)
def requests(steps: int, seeds: int, schemas: int, tokenizer: Path | None) -> None:
    """Measure structured output.

    Steps are those of a model of 500M parameters whose vocabulary has 131,072 tokens. Each row follows a schema of its
    own; steps of as many rows that follow none come in between, in the same engine. Answers are those of a tiny model
    in a running system, checked by jsonschema-rs, and once more while a worker is killed. Then the gateway's processor
    time for a token is measured, with calls of tools and as plain text.
    """
    printer = RecordPrinter(BENCH)
    with logged() as echo:
        try:
            text = make_wide_tokenizer() if tokenizer is None else tokenizer.read_bytes()
            uvloop.run(_steps(printer, steps, text))
            checkpoint = kept_model("tiny", printer.progress)
            for record in uvloop.run(measure_answers(printer.progress, checkpoint, schemas, seeds, echo)):
                printer.emit(record)
            for record in uvloop.run(measure_parsing(printer.progress, checkpoint, echo)):
                printer.emit(record)
        except BenchFailed as error:
            raise click.ClickException(str(error)) from None
    sys.exit(0 if printer.finish() else 1)


async def _steps(printer: RecordPrinter, steps: int, tokenizer: bytes) -> None:
    printer.progress("making up a model of 500M parameters")
    async with wide_engine(make_wide_model(), tokenizer) as engine:
        for rows, most in ROWS.items():
            printer.progress(f"{steps} steps of {rows} rows by schemas, and as many of others")
            _emit_steps(printer, f"step at b{rows}, by schemas", await measure_steps(engine, rows, steps), most)
            printer.progress(f"{steps} steps of {rows} rows with logprobs = {LOGPROBS}, and as many without")
            told = await measure_steps(engine, rows, steps, LOGPROBS, grammars=False)
            _emit_steps(printer, f"step at b{rows}, logprobs = {LOGPROBS}", told, MOST_WITH_LOGPROBS)


def _emit_steps(printer: RecordPrinter, case: str, times: StepTimes, most: float) -> None:
    plain, masked = ([1e3 * one for one in times.of(kind)] for kind in ("plain", "masked"))
    middle = statistics.median
    printer.emit(measured(BENCH, f"{case}, median", middle(masked), "ms", middle(plain), at_most=most))
    printer.emit(measured(BENCH, f"{case}, p99", _p99(masked), "ms", _p99(plain), at_most=MOST_P99))
    printer.emit(measured(BENCH, f"{case}, tokens withheld", times.withheld, "tokens"))


def _p99(numbers: Sequence[float]) -> float:
    return statistics.quantiles(numbers, n=100)[98]
