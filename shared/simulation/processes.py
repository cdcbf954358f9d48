"""Simulated processes: tasks that are stopped and continued together, as by SIGSTOP and SIGCONT.

None of a stopped process's callbacks runs, and its timers keep running time, as those of a real process do
(`clock.py`).
"""

import asyncio
from contextvars import Context, copy_context
from typing import cast

from livescale.shared.runtime.clock import MOST_SECONDS
from livescale.shared.simulation.handles import process_of
from livescale.shared.simulation.virtual_clock import machine_time
from livescale.shared.simulation.virtual_time import running_loop


class Process:
    """A simulated process: all tasks that run in its `context`, or are started by these. `away`: seconds it slept.
    Without a `pid` it has that of the real process."""

    def __init__(self, pid: int | None = None) -> None:
        self.pid = pid
        self.away = 0.0
        self.is_stopped = False
        self._stopped_at = 0.0
        self._due: list[asyncio.Handle] = []  # since it was stopped

    def context(self) -> Context:
        """A context for the first task of the process; the tasks that it starts inherit it."""
        context = copy_context()
        context.run(process_of.set, self)
        return context

    def stop(self) -> None:
        """Stop the process. What is due in this turn of the loop still runs."""
        if not self.is_stopped:
            self.is_stopped, self._stopped_at = True, machine_time()
            running_loop().slept = True

    def go_on(self) -> None:
        """Let the process run on. Its own time has hardly moved meanwhile."""
        if self.is_stopped:
            self.away += max(0.0, machine_time() - self._stopped_at - MOST_SECONDS)
            self.is_stopped, due, self._due = False, self._due, []
            for handle in due:
                asyncio.get_running_loop().call_soon(_run, handle, context=Context())

    def put_off(self, handle: asyncio.Handle) -> None:
        self._due.append(handle)


def this_process() -> Process | None:
    """The simulated process that the caller runs in; None outside of all."""
    return cast("Process | None", process_of.get())


def _run(handle: asyncio.Handle) -> None:
    if not handle.cancelled():
        handle._run()
