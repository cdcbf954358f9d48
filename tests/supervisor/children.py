"""Real child processes, tiny ones."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from livescale.services.supervisor.processes import ProcessCommand

DEADLINE_SECONDS = 60.0


class Log:
    """An echo that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, name: str, line: str) -> None:
        self.lines.append((name, line))

    def of(self, name: str) -> list[str]:
        return [line for who, line in self.lines if who == name]


def python(name: str, code: str, **options: object) -> ProcessCommand:
    """A command that runs `code` in a bare interpreter."""
    return ProcessCommand(name, (sys.executable, "-I", "-S", "-u", "-c", code), **options)  # type: ignore[arg-type]


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended before it was looked for, or before it was read
        return False


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - the condition is outside of this process
            await asyncio.sleep(0.01)


def nice_of(pid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)
