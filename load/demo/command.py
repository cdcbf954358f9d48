"""The command `livescale demo`."""

import asyncio
import sys
from pathlib import Path

import click
import msgspec
import uvloop
from rich.console import Console

from load.demo.calibrate import CalibrationFailed
from load.demo.check import check_run
from load.demo.stage import Happened, Stage
from load.kept import KEPT, kept_model, open_log
from load.newcomers import NOTES, newcomer_table, tell_first_tokens
from load.outcome import Outcome, Verdict
from load.report import check_report_path, write_report
from load.screen import open_screen
from load.settings import DemoSettings, refuse_replay_without_trace
from load.stats import Period
from load.tables import latency_table
from load.target import TargetError
from load.trace import Trace, parse_window
from load.traces import TraceError, read_trace
from services.cli.options import settings_options
from services.supervisor.checks import BadSettings
from services.supervisor.processes import ChildFailed
from services.supervisor.stack import StackFailed
from shared.world import SystemClock

LOG = KEPT / "demo.log"


@click.command("demo")
@settings_options(DemoSettings)
def demo(settings: DemoSettings) -> None:
    """Serve a small model, send a burst, scale out and in, check every token.

    \b
    livescale demo                                        about 90 s
    livescale demo --trace AzureLLMInferenceTrace_conv.csv --window 60+60
    livescale demo --model ~/my-checkpoint --dtype bfloat16
    livescale demo --live off                             new instances do nothing before they are whole

    A trace is scaled to this machine unless --rate-scale (TraceUpscaler: stamps are repeated, or thinned below 1)
    and --length-scale say how. Links are slowed to --link-rate so that blocks can be seen arriving.
    Exits 0 only if every stream was complete and right; speed is shown, not judged.
    """
    check_report_path(Path(settings.report))
    console = Console()
    source = read_source(settings)
    checkpoint = find_checkpoint(settings, console)
    happened = run(settings, checkpoint, source, console)
    console.print("The system is down. Checking every stream against transformers ...")
    verdict = check_run(checkpoint, settings.dtype, happened.asks, happened.records, console.print)
    outcome = make_outcome(settings, happened, verdict)
    print_outcome(console, outcome)
    write_report(Path(settings.report), outcome)
    console.print(f"Report: {settings.report}", highlight=False, soft_wrap=True)
    sys.exit(0 if verdict.good else 1)


def read_source(settings: DemoSettings) -> Trace | None:
    """The trace to replay, if any. Raises ClickException."""
    try:
        refuse_replay_without_trace(settings)
        if settings.window:
            parse_window(settings.window)
        return read_trace(Path(settings.trace)) if settings.trace else None
    except (TraceError, ValueError) as error:
        raise click.ClickException(str(error)) from None


def find_checkpoint(settings: DemoSettings, console: Console) -> Path:
    """The checkpoint to serve; without one given, a small one is made the first time."""
    if settings.model:
        return Path(settings.model)
    return kept_model("small", lambda line: console.print(line, highlight=False))


def run(settings: DemoSettings, checkpoint: Path, source: Trace | None, console: Console) -> Happened:
    """The system's part of the demo. Raises ClickException, and Abort after Ctrl-C."""
    try:
        with open_log(LOG) as log, open_screen(console) as screen:
            screen.note(describe_start(settings, checkpoint))
            return uvloop.run(Stage(settings, screen, SystemClock(), log).run(checkpoint, source))
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise click.Abort from None
    except (BadSettings, StackFailed, ChildFailed, CalibrationFailed, TargetError, TraceError) as error:
        raise click.ClickException(str(error)) from None


def describe_start(settings: DemoSettings, checkpoint: Path) -> str:
    rate = settings.link_rate
    links = (
        f"links slowed to {rate / 1e6:g} MB/s so that blocks can be seen arriving" if rate else "links at full speed"
    )
    return f"Starting a system that serves {checkpoint.name} in {settings.dtype}; {links}; logs in {LOG}"


def make_outcome(settings: DemoSettings, happened: Happened, verdict: Verdict) -> Outcome:
    start, load = happened.start, happened.load
    burst_start, burst_end = start + load.burst.start, start + (load.burst.end or load.seconds)
    return Outcome(
        start=start,
        end=happened.end,
        periods=[
            Period("before", start, burst_start),
            Period("burst", burst_start, burst_end),
            Period("after", burst_end, start + load.seconds),
        ],
        records=happened.records,
        story=happened.story,
        verdict=verdict,
        settings=describe_settings(settings, happened),
    )


def describe_settings(settings: DemoSettings, happened: Happened) -> dict[str, str]:
    """What the run was asked for, and what it chose itself."""
    chosen = {
        "rate_scale": happened.load.rate_scale,
        "length_scale": happened.load.length_scale,
        "one worker": f"{happened.capacity.prefill_rate:.0f} prompt tokens/s, "
        f"{happened.capacity.decode_rate:.0f} output tokens/s",
    }
    values = {**msgspec.to_builtins(settings), **chosen}
    return {
        name.replace("_", "-"): f"{round(value, 4):,}" if isinstance(value, float) else str(value)
        for name, value in values.items()
        if value is not None
    }


def print_outcome(console: Console, outcome: Outcome) -> None:
    console.print(latency_table(outcome.summaries(), "Latency, counted from when each request was due"))
    newcomers = outcome.newcomers()
    if newcomers:
        console.print(newcomer_table(newcomers, outcome.records))
        for line in (*NOTES, *tell_first_tokens(newcomers, outcome.records)):
            console.print(line, highlight=False)
    else:
        console.print("No instance was added: the load did not ask for more than one.")
    for line in [*outcome.verdict.faults[:10], *outcome.verdict.wrong[:10]]:
        console.print(line, style="red", markup=False)
    console.print(outcome.verdict.sentence(), style="bold green" if outcome.verdict.good else "bold red")
