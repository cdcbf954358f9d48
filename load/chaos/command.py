"""The command `livescale chaos`."""

import asyncio
import sys
from pathlib import Path

import click
import msgspec
import structlog
import uvloop
from rich.console import Console

from load.bench.record import Printer
from load.bench.system import logged
from load.chaos.reference import undisturbed
from load.chaos.report import ChaosReport, fault_table, make_report
from load.chaos.settings import ChaosSettings
from load.chaos.stage import Run, make_load, run_chaos
from load.kept import kept_model
from load.target import TargetError
from load.traces import TraceError
from services.cli.options import settings_options

LOG = Path(".livescale/chaos.log")
SHOWN = 20


@click.command("chaos")
@settings_options(ChaosSettings)
def chaos(settings: ChaosSettings) -> None:
    """Kill, freeze and scale a system under load; compare every stream with an undisturbed run.

    \b
    livescale chaos --minutes 5 --seed 1
    livescale chaos --minutes 1 --dtype bfloat16 --disturb worker
    livescale chaos --trace AzureLLMInferenceTrace_conv.csv --rate-scale 0.2

    The same seed makes the same faults and the same requests. A refused request is sent again where the answer has
    a Retry-After; nothing is sent again once a token came. Exits 0 only if no token was wrong or lost.
    """
    # stdout is the report's alone.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    printer = Printer("chaos")
    checkpoint = Path(settings.model) if settings.model else kept_model("small", printer.progress)
    try:
        trace = make_load(settings)
        with logged(LOG) as echo:
            run = uvloop.run(run_chaos(settings, checkpoint, trace, printer.progress, echo))
    except (TargetError, TraceError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    printer.progress("the system is down; the same requests to an undisturbed engine ...")
    report = judge(settings, run, checkpoint)
    show(report, run)
    sys.exit(0 if report.good else 1)


def judge(settings: ChaosSettings, run: Run, checkpoint: Path) -> ChaosReport:
    return make_report(
        seed=settings.seed,
        dtype=settings.dtype,
        seconds=run.end - run.start,
        happenings=run.happenings,
        records=run.records,
        undisturbed=asyncio.run(undisturbed(checkpoint, settings.dtype, run.asks)),
        resumed=run.resumed,
        refused=run.refused,
    )


def show(report: ChaosReport, run: Run) -> None:
    """For people on stderr, a JSON line on stdout."""
    console = Console(stderr=True)
    console.print(fault_table(run.happenings, run.records, run.start, run.end))
    for line in report.incomplete[:SHOWN]:
        console.print(line, style="red", markup=False)
    verdict = "nothing was wrong or lost" if report.good else f"not good; the processes' logs are in {LOG}"
    console.print(
        f"{report.streams} streams, {report.tokens} tokens, {report.resumed} resumed, {report.refused} refused first;"
        f" {report.wrong_tokens} tokens wrong, {report.lost_tokens} lost: {verdict}",
        style="bold green" if report.good else "bold red",
    )
    click.echo(msgspec.json.encode(report))
