"""The command `livescale demo`: it runs the demo, checks every token, and writes the report."""

import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console

from livescale.load.demo.check import check_run, compare_again
from livescale.load.demo.outcome import make_outcome, print_outcome
from livescale.load.demo.start import DemoFailed, run_demo
from livescale.load.hardware import HardwareWatch
from livescale.load.kept import kept_model
from livescale.load.report import check_report_path, write_report
from livescale.load.settings import DemoSettings, refuse_replay_without_trace
from livescale.load.trace import Trace, TraceError, parse_window
from livescale.load.trace_files import read_trace
from livescale.services.cli.options import settings_options


@click.command("demo")
@settings_options(DemoSettings)
def demo(settings: DemoSettings) -> None:
    """Serve a small model, send a burst of requests, scale out and in, and check every token.

    \b
    livescale demo                                        about 90 s
    livescale demo --trace AzureLLMInferenceTrace_conv.csv --window 60+60
    livescale demo --model ~/my-checkpoint --dtype bfloat16
    livescale demo --live off                             new instances wait for all their parameters

    A trace is scaled to this machine, unless --rate-scale and --length-scale are given. Links are slowed to --link-rate
    so that blocks are seen arriving.

    The exit status is 0 if every stream was complete and right and an instance was added; speed is shown, not judged.
    It is 1 if not, and 2 if nothing could be judged because an option is wrong or the system did not run. The last
    lines say why.
    """
    console = Console()
    source = read_source(settings)
    checkpoint = find_checkpoint(settings, console)
    watch = HardwareWatch()
    happened = run_demo(settings, checkpoint, source, console)
    hardware = watch.seen()  # of what is measured; the check is not
    console.print("The system is down. Checking every stream against transformers ...")
    verdict = msgspec.structs.replace(
        check_run(checkpoint, settings.dtype, happened.asks, happened.records, console.print),
        again=len(happened.again),
        changed=compare_again(happened.records, happened.again),
    )
    outcome = make_outcome(settings, happened, verdict, hardware)
    print_outcome(console, outcome)
    write_report(Path(settings.report), outcome)
    console.print(f"Report: {settings.report}", highlight=False, soft_wrap=True)
    sys.exit(0 if outcome.good else 1)


def read_source(settings: DemoSettings) -> Trace | None:
    """The trace to replay, if any; and whether the report can be written. Raises DemoFailed."""
    try:
        check_report_path(Path(settings.report))
        refuse_replay_without_trace(settings)
        if settings.window:
            parse_window(settings.window)
        return read_trace(Path(settings.trace)) if settings.trace else None
    except click.ClickException as error:
        raise DemoFailed(error.message) from None
    except (TraceError, ValueError) as error:
        raise DemoFailed(str(error)) from None


def find_checkpoint(settings: DemoSettings, console: Console) -> Path:
    """The checkpoint to serve; without one given, a small one is made the first time."""
    if settings.model:
        return Path(settings.model)
    return kept_model("small", lambda line: console.print(line, highlight=False))
