"""The command `livescale chaos`: it disturbs a system under load, and compares its streams with an undisturbed run."""

import asyncio
import sys
from pathlib import Path

import click
import msgspec
import uvloop
from rich.console import Console

from livescale.load.chaos.load import ChaosSettings, make_load
from livescale.load.chaos.page import write_page
from livescale.load.chaos.report import ChaosReport, ChaosRun, fault_table, make_report
from livescale.load.chaos.run import run_chaos
from livescale.load.chaos.system import choose_targets
from livescale.load.engine_alone import undisturbed
from livescale.load.kept import KEPT, kept_model, logged
from livescale.load.report import check_report_path
from livescale.load.screen import open_screen
from livescale.load.target import TargetError
from livescale.load.trace import Trace
from livescale.services.cli.options import settings_options

LOG = KEPT / "chaos.log"
SHOWN = 20


@click.command("chaos")
@settings_options(ChaosSettings)
def chaos(settings: ChaosSettings) -> None:
    """Kill and freeze the processes of a system under load, and compare every token with an undisturbed run.

    \b
    livescale chaos --minutes 5 --seed 1
    livescale chaos --minutes 1 --dtype bfloat16 --disturb worker
    livescale chaos --minutes 2 --stalls                  also freeze all processes at once for up to 5 s
    livescale chaos --minutes 5 --disaggregation on       also give workers other roles
    livescale chaos --trace AzureLLMInferenceTrace_conv.csv --rate-scale 0.2

    The same seed makes the same faults and the same requests. A refused request is sent again if the answer has a
    Retry-After header. A request whose gateway died is sent again to another gateway.

    The exit status is 0 only if no token was wrong or lost, the system recovered in the end, and no process or shared
    memory was left behind. Speed is shown, not judged.
    """
    check_report_path(Path(settings.report))
    console = Console(stderr=True)  # stdout is the record's alone
    try:
        trace = make_load(settings)
        choose_targets(settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    checkpoint = Path(settings.model) if settings.model else kept_model("small", console.print)
    try:
        run = disturb(settings, checkpoint, trace, console)
    except (TargetError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    console.print("The system is down. The same requests to an undisturbed engine ...")
    right = asyncio.run(undisturbed(checkpoint, settings.dtype, run.asks))
    report = make_report(run, right, settings.seed, settings.dtype)
    show(console, report, run)
    write_page(Path(settings.report), report, run, describe_settings(settings))
    console.print(f"Report: {settings.report}", highlight=False, soft_wrap=True)
    click.echo(msgspec.json.encode(report))
    sys.exit(0 if report.good else 1)


def disturb(settings: ChaosSettings, checkpoint: Path, trace: Trace, console: Console) -> ChaosRun:
    """The system's part. Raises ClickException, and Abort after Ctrl-C."""
    try:
        with logged(LOG) as echo, open_screen(console) as screen:
            screen.note(f"Starting a system that serves {checkpoint.name} in {settings.dtype}; logs in {LOG}")
            return uvloop.run(run_chaos(settings, checkpoint, trace, screen, echo))
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise click.Abort from None


def describe_settings(settings: ChaosSettings) -> dict[str, str]:
    values = msgspec.structs.asdict(settings)
    return {name.replace("_", "-"): str(value) for name, value in values.items() if value is not None}


def show(console: Console, report: ChaosReport, run: ChaosRun) -> None:
    """Print the verdict, the faults and the first complaints for people."""
    console.print(fault_table(run))
    for line in report.complaints()[:SHOWN]:
        console.print(line, style="red", markup=False)
    console.print(report.sentence(), style="bold green" if report.good else "bold red")
    if not report.good:
        console.print(f"The processes' logs are in {LOG}")
