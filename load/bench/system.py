"""A whole system for a bench: its log, and its failures in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from load.kept import KEPT, open_log
from services.supervisor.checks import BadSettings
from services.supervisor.processes import ChildFailed, Echo
from services.supervisor.stack import StackFailed
from shared.bus.contract import BusError

LOG = KEPT / "bench.log"


@contextmanager
def logged(log: Path = LOG) -> Iterator[Echo]:
    """What a stack's processes print goes to a file; what goes wrong becomes one line with a remedy."""
    with open_log(log) as echo:
        try:
            yield echo
        except (BadSettings, ChildFailed, StackFailed, BusError) as error:
            raise click.ClickException(f"{error}\nThe processes' logs are in {log}") from None
