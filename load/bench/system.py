"""A whole system for a bench: its log, and its failures in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from load.kept import KEPT
from services.supervisor.checks import BadSettings
from services.supervisor.processes import ChildFailed, Echo
from services.supervisor.stack import StackFailed
from shared.bus.contract import BusError

LOG = KEPT / "bench.log"


@contextmanager
def logged(log: Path = LOG) -> Iterator[Echo]:
    """What a stack's processes print goes to a file; what goes wrong becomes one line with a remedy."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        try:
            yield lambda name, line: print(f"{name} | {line}", file=file, flush=True)
        except (BadSettings, ChildFailed, StackFailed, BusError) as error:
            raise click.ClickException(f"{error}\nThe processes' logs are in {log}") from None
