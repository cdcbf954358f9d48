"""What load keeps below the working directory between runs: made checkpoints, and the logs of systems that it
starts."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click
import structlog

from livescale.load.sizes import Quantized, Size
from livescale.services.supervisor.checks import BadSettings
from livescale.services.supervisor.commands import CLI
from livescale.services.supervisor.processes import ChildFailed, Echo
from livescale.services.supervisor.stack import StackFailed
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.parameters import Family

KEPT = Path(".livescale")
LOG = KEPT / "bench.log"
SYSTEM_ERRORS = (BadSettings, ChildFailed, StackFailed, BusError)  # what a system raises that is started from here


def kept_model(
    size: Size, tell: Callable[[str], None], family: Family = "llama", quantized: Quantized | None = None
) -> Path:
    """A made checkpoint of this size and family, made the first time (`tell` is told) and kept."""
    directory = KEPT / "models" / f"{family}-{size}-{quantized or 0}"
    # A directory that was made is whole, and only making one needs torch.
    if not directory.exists():
        tell(f"Making a {size} checkpoint in {directory}, this once ...")
        _make(directory, size, family, quantized)
    return directory


def _make(directory: Path, size: Size, family: Family, quantized: Quantized | None) -> None:
    """In a process of its own: much of the memory that it takes, 8 GB with 64 experts, would stay with this one."""
    how = () if quantized is None else ("--quantize", quantized)
    command = ("make-model", str(directory), "--family", family, "--size", size, "--seed", "0", *how)
    made = subprocess.run([*CLI, *command], capture_output=True, text=True, check=False)
    if made.returncode:
        said = made.stderr.strip() or f"its process ended with {made.returncode}; is memory free?"
        raise click.ClickException(f"{directory} was not made: {said}")


@contextmanager
def open_log(path: Path) -> Iterator[Echo]:
    """A log that takes the lines of all processes, this one's too: on the screen they would tear the picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", buffering=1) as file, logs_to(file):
        yield lambda name, line: print(f"{name:<10} | {line}", file=file)


@contextmanager
def logs_to(file: TextIO) -> Iterator[None]:
    """What this process logs goes there: by default it would be mixed with the results on stdout."""
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(file))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def logged(log: Path = LOG) -> Iterator[Echo]:
    """What a stack's processes print goes to a file; what goes wrong becomes one line with a remedy."""
    with open_log(log) as echo:
        try:
            yield echo
        except SYSTEM_ERRORS as error:
            raise click.ClickException(f"{error}\nThe processes' logs are in {log}") from None
