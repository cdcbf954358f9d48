"""Starts the demo's system and its load; what goes wrong becomes a line that says so."""

import asyncio
from pathlib import Path

import click
import uvloop
from rich.console import Console

from livescale.load.demo.run import CalibrationFailed, DemoResult, DemoRun
from livescale.load.kept import KEPT, SYSTEM_ERRORS, open_log
from livescale.load.screen import open_screen
from livescale.load.settings import DemoSettings
from livescale.load.target import TargetError
from livescale.load.trace import Trace, TraceError
from livescale.services.supervisor.checks import BadSettings

LOG = KEPT / "demo.log"


class DemoFailed(click.ClickException):
    """It could not be carried out, whatever would have come of it."""

    exit_code = 2


def run_demo(settings: DemoSettings, checkpoint: Path, source: Trace | None, console: Console) -> DemoResult:
    """The system's part of the demo. Raises DemoFailed, and Abort after Ctrl-C."""
    try:
        with open_log(LOG) as log, open_screen(console) as screen:
            screen.note(describe_start(settings, checkpoint))
            return uvloop.run(DemoRun(settings, screen, log).run(checkpoint, source))
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise click.Abort from None
    except (BadSettings, TraceError) as error:
        raise DemoFailed(str(error)) from None
    except (*SYSTEM_ERRORS, CalibrationFailed, TargetError) as error:
        raise DemoFailed(f"the demo could not be carried out: {error}\nThe processes' logs are in {LOG}") from None


def describe_start(settings: DemoSettings, checkpoint: Path) -> str:
    rate = settings.link_rate
    links = (
        f"links slowed to {rate / 1e6:g} MB/s so that blocks can be seen arriving" if rate else "links at full speed"
    )
    return f"Starting a system that serves {checkpoint.name} in {settings.dtype}; {links}; logs in {LOG}"
