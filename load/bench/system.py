"""A whole system for a bench, and the checkpoints that benches serve."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from load.bench.record import Printer
from load.make_model import make_model
from load.sizes import Size
from services.supervisor.checks import BadSettings
from services.supervisor.processes import ChildFailed, Echo
from services.supervisor.stack import StackFailed
from shared.bus.contract import BusError

KEPT = Path(".livescale/models")
LOG = Path(".livescale/bench.log")


def kept_model(size: Size, printer: Printer) -> Path:
    """A made checkpoint of this size, made the first time and kept."""
    directory = KEPT / f"llama-{size}-0"
    if not directory.exists():
        printer.progress(f"making a {size} checkpoint in {directory}, this once")
        make_model(directory, "llama", size, 0)
    return directory


@contextmanager
def logged(log: Path = LOG) -> Iterator[Echo]:
    """What a stack's processes print goes to a file; what goes wrong becomes one line with a remedy."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        try:
            yield lambda name, line: print(f"{name} | {line}", file=file, flush=True)
        except (BadSettings, ChildFailed, StackFailed, BusError) as error:
            raise click.ClickException(f"{error}\nThe processes' logs are in {log}") from None
