"""`livescale bench live`: a second instance is added while requests wait, live against stop-the-world, with real
processes."""

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

import click
import uvloop

from livescale.load.bench.live.page import write_page
from livescale.load.bench.live.rows import LiveMeasurements, curve, rows
from livescale.load.bench.live.steps import LiveRun, StepLog
from livescale.load.bench.live.system import DTYPE, LiveBenchSystem, asks, live_bench_system, model_blocks
from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.run import report_option, run_bench
from livescale.load.bench.system import Launcher, Renewable, renewable
from livescale.load.engine_alone import undisturbed
from livescale.load.records import Ask
from livescale.shared.messages.transfers import LiveMode

T = TypeVar("T")

BENCH = "live"
SIZE: Final = "large"
REQUESTS, PROMPT, STREAM_TOKENS = 12, 300, 32
LONG_REQUESTS, LONG_PROMPT = 4, 511  # and the token that follows
QUIET_REQUESTS, QUIET_LANES = 8, 4
FACTOR = 6.0  # layers that are run while one is loaded
FACTORS = (2.0, FACTOR, 12.0)
MODES: tuple[LiveMode, ...] = ("off", "best-effort", "zigzag")
ONCE: LiveMode = "zigzag-ilp"
CALM: tuple[LiveMode, ...] = ("off", "zigzag")
WARM_UPS, CALIBRATIONS = 1, 3
UNSHAPED = 0.0


@click.command()
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Number of runs of each mode; the modes take turns.",
)
@report_option("livescale-live.html")
def live(repeats: int, report: Path) -> None:
    """Compare live scale-out with one that waits until the new instance has all parameters.

    A second instance is added while 12 requests wait. The processes are real, with a core for each worker. The model
    has 500M parameters in bfloat16, and links are so slow that loading a layer takes as long as running six. Every
    token is compared with that of an undisturbed engine.
    """
    run_bench(
        BENCH,
        SIZE,
        report,
        lambda printer, checkpoint, launcher: uvloop.run(measure(printer, checkpoint, repeats, launcher)),
        lambda done, printer: write_page(report, done, printer.records, repeats, printer.conditions()),
    )


async def measure(printer: RecordPrinter, checkpoint: Path, repeats: int, launcher: Launcher) -> LiveMeasurements:
    """Run every mode `repeats` times. Raises BenchFailed if a system does not do what is measured."""
    layers, blocks = model_blocks(checkpoint)
    printer.progress("an undisturbed engine answers the same requests")
    requests, long = asks(REQUESTS, PROMPT, STREAM_TOKENS), asks(LONG_REQUESTS, LONG_PROMPT, 1, first=REQUESTS)
    expected = await undisturbed(checkpoint, DTYPE, [*requests, *long])
    steps = StepLog(launcher.echo, layers)
    printer.progress("a system whose links are not shaped yet")
    system = partial(live_bench_system, launcher, checkpoint, steps=steps, expected=expected)
    async with renewable(partial(system, UNSHAPED)) as systems:
        done = LiveMeasurements(blocks, await layer_seconds(systems, printer))
    for factor in (FACTOR, *(factor for factor in FACTORS if factor != FACTOR)):
        rate = blocks[1] / (factor * done.layer)
        printer.progress(f"a system whose links carry {rate / 1e6:.0f} MB/s: a block takes {factor:g} layers")
        async with renewable(partial(system, rate)) as systems:
            bench = LiveBench(printer, systems, done)
            if factor == FACTOR:
                done.rate = rate
                await bench.everything(repeats, long)
                done.curve[factor] = {mode: done.runs[mode] for mode in MODES}
            else:
                done.curve[factor] = {mode: [await bench.scale(mode, f"load {factor:g}")] for mode in MODES}
        for record in chain(rows(done) if factor == FACTOR else (), curve(factor, done.curve[factor])):
            printer.emit(record)
    return done


async def layer_seconds(
    systems: Renewable[LiveBenchSystem], printer: RecordPrinter, requests: Sequence[Ask] = ()
) -> float:
    """Seconds that a layer takes for one request at a time, on one instance while nothing scales."""
    requests = requests or asks(WARM_UPS + CALIBRATIONS, PROMPT, 1)
    printer.progress(f"one instance, prompts of {len(requests[0].prompt)} tokens")
    seconds = await taken(printer, systems, lambda: systems.now.alone(requests))
    return statistics.median(seconds[WARM_UPS:]) / systems.now.steps.model_layers


async def taken(printer: RecordPrinter, systems: Renewable[LiveBenchSystem], sample: Callable[[], Awaitable[T]]) -> T:
    """Take a sample, and again in another system where it was disturbed."""
    return await printer.samples.take_async(lambda: systems.now.watch.losses.over(sample), systems.renew)


@dataclass(frozen=True)
class LiveBench:
    """What is measured in one system, or in those that took its place; all of it goes to `done`. Each sample begins and
    ends with one instance."""

    printer: RecordPrinter
    systems: Renewable[LiveBenchSystem]
    done: LiveMeasurements

    async def everything(self, repeats: int, long: Sequence[Ask]) -> None:
        self.done.layer = await layer_seconds(self.systems, self.printer)
        self.done.long_layer = await layer_seconds(self.systems, self.printer, long)
        for number in range(repeats):
            for mode in (*MODES, *([ONCE] if number == 0 else [])):
                await self.repeat(mode, f"{number + 1} of {repeats}")
        for mode in MODES:
            self.done.streams[mode] = [await self.scale(mode, f"{STREAM_TOKENS} tokens each", STREAM_TOKENS)]
        self.printer.progress(f"zigzag, prompts of {LONG_PROMPT} tokens")
        self.done.hand_offs += await self.sampled(lambda: self.handed_over(long))

    async def sampled(self, sample: Callable[[], Awaitable[T]]) -> T:
        return await taken(self.printer, self.systems, sample)

    async def handed_over(self, long: Sequence[Ask]) -> list[float]:
        """The seconds that each hand-off of a request took."""
        system = self.systems.now
        await system.scale("zigzag", long)
        hand_offs = list(system.steps.hand_offs)
        await system.shrink()
        return hand_offs

    async def repeat(self, mode: LiveMode, which: str) -> None:
        """A scale, and while both serve what they answer a second."""
        run, seconds = await self.sampled(lambda: self.once(mode, which, 1, is_quiet=mode in CALM))
        self.done.runs.setdefault(mode, []).append(run)
        if seconds is not None:
            self.done.quiet.setdefault(mode, []).append(QUIET_REQUESTS / seconds)

    async def scale(self, mode: LiveMode, which: str, tokens: int = 1) -> LiveRun:
        run, _ = await self.sampled(lambda: self.once(mode, which, tokens, is_quiet=False))
        return run

    async def once(self, mode: LiveMode, which: str, tokens: int, *, is_quiet: bool) -> tuple[LiveRun, float | None]:
        """A scale; then, if asked for, seconds for some requests while both serve and nothing scales."""
        run, seconds = await self.grown(mode, which, tokens), None
        if is_quiet:
            self.printer.progress(f"{mode}, {which}: both serve, nothing scales")
            seconds = await self.systems.now.closed(asks(QUIET_REQUESTS, PROMPT, 1), QUIET_LANES)
        await self.systems.now.shrink()
        return run, seconds

    async def grown(self, mode: LiveMode, which: str, tokens: int) -> LiveRun:
        self.printer.progress(f"{mode}, {which}")
        run = await self.systems.now.scale(mode, asks(REQUESTS, PROMPT, tokens))
        slow = run.slowest
        self.printer.progress(
            f"  whole after {run.load_seconds:.2f} s, mean TTFT {run.mean_ttft:.2f} s; the slowest step of all took "
            f"{slow.end - slow.start:.2f} s for {slow.layers / PROMPT:.3g} layers of a request, at {slow.worker}"
        )
        return run
