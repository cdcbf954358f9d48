"""`livescale bench requests`: what it costs that answers have a form, and whether they have it; what log-probabilities,
choices and many streams cost."""

import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import uvloop

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.requests.choices import measure_choices
from livescale.load.bench.requests.held import measure_held
from livescale.load.bench.requests.loading import kept_wide_model, measure_loading
from livescale.load.bench.requests.log_probabilities import measure_log_probabilities
from livescale.load.bench.requests.parsed import measure_parsing
from livescale.load.bench.requests.steps import StepTimes, measure_steps, wide_engine
from livescale.load.bench.requests.wide import make_wide_model, make_wide_tokenizer
from livescale.load.bench.requests.written import measure_answers
from livescale.load.bench.run import measuring
from livescale.load.bench.system import Launcher
from livescale.load.kept import kept_model

BENCH = "requests"
ROWS = {1: 1.01, 32: 1.03}  # of a step, and how much longer it may take
MOST_P99 = 1.15
MOST_WITH_LOGPROBS = 1.02
LOGPROBS = 5
PARTS = ("steps", "answers", "parsing", "logprobs", "choices", "loading", "streams")


@dataclass(frozen=True, kw_only=True)
class RequestsExtent:
    """Which parts are measured, and how much of each: the options of the command."""

    parts: Sequence[str]
    steps: int
    seeds: int
    schemas: int
    streams: int
    repeats: int
    seconds: float
    tokenizer: Path | None


@click.command()
@click.option(
    "--steps", type=click.IntRange(10), default=400, show_default=True, help="Number of measured steps of each kind."
)
@click.option(
    "--seeds", type=click.IntRange(1), default=10, show_default=True, help="Number of answers by each schema."
)
@click.option("--schemas", type=click.IntRange(1), default=50, show_default=True, help="Number of schemas.")
@click.option(
    "--streams", type=click.IntRange(10), default=200, show_default=True, help="Number of streams with logprobs."
)
@click.option(
    "--repeats", type=click.IntRange(1), default=9, show_default=True, help="Number of measured first tokens."
)
@click.option(
    "--seconds", type=click.FloatRange(1), default=10.0, show_default=True, help="Seconds of each load of streams."
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A tokenizer.json of 131,072 tokens; by default one is made.",
)
@click.option(
    "--part",
    "parts",
    type=click.Choice(PARTS),
    multiple=True,
    help="What is measured; by default all. May be given several times.",
)
def requests(**given: Any) -> None:  # noqa: ANN401 the options, as click has them
    """Measure structured output, log-probabilities, choices, and what gateway and router take.

    \b
    steps     Steps of a model of 500M parameters whose vocabulary has 131,072 tokens. Each
              row follows a schema of its own; steps of as many rows that follow none come
              in between, in the same engine. Then the same with log-probabilities.
    answers   Answers of a tiny model by many schemas, checked by jsonschema-rs, and once
              more while a worker is killed.
    parsing   The gateway's processor time for a token, in calls of tools and as plain text.
    logprobs  Streams of a tiny model, one at a time, at once, through scales and a kill:
              their log-probabilities have to be the same.
    choices   The time to the last first token of eight choices of 1,000 tokens of prompt,
              beside eight prompts and one choice.
    loading   The first token at an instance that is still loading, with a schema and
              without.
    streams   How many streams of 50 tokens/s gateway and router hold on a core each,
              beside the engine called directly.
    """
    printer, given = RecordPrinter(BENCH), {**given, "parts": given["parts"] or PARTS}
    with measuring(printer) as launcher:
        uvloop.run(_measure(printer, RequestsExtent(**given), launcher))
    sys.exit(0 if printer.finish() else 1)


async def _measure(printer: RecordPrinter, extent: RequestsExtent, launcher: Launcher) -> None:
    if "steps" in extent.parts:
        await _steps(printer, extent)
    tell = printer.progress
    tiny = kept_model("tiny", tell)
    parts: dict[str, Callable[[], Awaitable[Sequence[Record]]]] = {
        "answers": lambda: measure_answers(launcher, tiny, extent.schemas, extent.seeds),
        "parsing": lambda: measure_parsing(launcher, tiny),
        "logprobs": lambda: measure_log_probabilities(launcher, kept_model("tiny", tell, "qwen2"), extent.streams),
        "choices": lambda: measure_choices(launcher, kept_model("small", tell), extent.repeats),
        "loading": lambda: measure_loading(launcher, kept_wide_model(tell), extent.repeats),
        "streams": lambda: measure_held(launcher, tiny, extent.seconds),
    }
    for part, measure in parts.items():
        if part in extent.parts:
            for record in await measure():
                printer.emit(record)


async def _steps(printer: RecordPrinter, extent: RequestsExtent) -> None:
    text = make_wide_tokenizer() if extent.tokenizer is None else extent.tokenizer.read_bytes()
    steps = extent.steps
    printer.progress("making up a model of 500M parameters")
    async with wide_engine(make_wide_model(), text) as engine:
        for rows, most in ROWS.items():
            printer.progress(f"{steps} steps of {rows} rows by schemas, and as many of others")
            _emit_steps(printer, f"step at b{rows}, by schemas", await measure_steps(engine, rows, steps), most)
            printer.progress(f"{steps} steps of {rows} rows with logprobs = {LOGPROBS}, and as many without")
            told = await measure_steps(engine, rows, steps, LOGPROBS, grammars=False)
            case = f"step at b{rows}, logprobs = {LOGPROBS}"
            _emit_steps(printer, case, told, MOST_WITH_LOGPROBS)
            if engine.kernels is not None:
                printer.emit(unused_row(case, told.likelihoods))


def _emit_steps(printer: RecordPrinter, case: str, times: StepTimes, most: float) -> None:
    """Tell the time that went by, and that of a processor, which other work on the machine changes little."""
    for name, of in (("", times.of), (" of processor time", times.busy)):
        plain, masked = ([1e3 * one for one in of(kind)] for kind in ("plain", "masked"))
        median = statistics.median
        printer.emit(measured(BENCH, f"{case}, median{name}", median(masked), "ms", median(plain), at_most=most))
        printer.emit(measured(BENCH, f"{case}, p99{name}", _p99(masked), "ms", _p99(plain), at_most=MOST_P99))
    printer.emit(measured(BENCH, f"{case}, tokens withheld", times.withheld, "tokens"))


def unused_row(case: str, likelihoods: Mapping[str, int]) -> Record:
    """Nothing may be computed for rows that ask for no log-probabilities."""
    unasked, asked = likelihoods["plain"], likelihoods["masked"]
    return measured(BENCH, f"{case}, computed where unused", unasked, "rows", asked, at_most=0.0)


def _p99(numbers: Sequence[float]) -> float:
    return statistics.quantiles(numbers, n=100)[98]
