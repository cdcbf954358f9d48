"""The directory of one run: made at the start, gone at the end, and cleared by the next start after a SIGKILL."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from livescale.services.supervisor.running import process_started

NAME = re.compile(r"livescale-(\d+)-(\d+)-.*")  # pid and start, so that another process of that pid is told apart


@contextmanager
def run_directory(parent: Path | None = None) -> Iterator[Path]:
    """A fresh directory below `parent` (by default the system's for temporary files), for its owner's eyes only."""
    parent = parent or Path(tempfile.gettempdir())
    clear_abandoned(parent)
    pid = os.getpid()
    prefix = f"livescale-{pid}-{process_started(pid) or 0}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def clear_abandoned(parent: Path) -> None:
    """Remove what runs left that were killed. What belongs to somebody else stays."""
    for directory in parent.glob("livescale-*"):
        named = NAME.fullmatch(directory.name)
        if named and process_started(int(named[1])) != int(named[2]) and directory.lstat().st_uid == os.getuid():
            shutil.rmtree(directory, ignore_errors=True)
