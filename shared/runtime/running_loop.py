"""The event loop of every process: uvloop, with timers in running time.

After a sleep all timers of an ordinary loop are due before anything that came meanwhile is read: every deadline passes,
everybody seems silent. Here they are due once the process has been awake for so long, whatever set them:
`asyncio.timeout`, `asyncio.sleep`, libraries.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

import structlog
import uvloop

from livescale.shared.runtime.running_time import TICK_SECONDS, RunningTime

Ts = TypeVarTuple("Ts")

EARLY_SECONDS = 0.002  # libuv counts in milliseconds
TOLD_SECONDS = 0.5  # a shorter sleep is nothing to tell of

log = structlog.get_logger()


class RunningTimer(asyncio.TimerHandle):
    """`armed` is the timer of the machine's clock behind it."""

    armed: asyncio.TimerHandle

    def cancel(self) -> None:
        self.armed.cancel()
        asyncio.Handle.cancel(self)  # a TimerHandle would tell its loop, which knows of the other alone


class RunningLoop(uvloop.Loop):
    """`time()` is running time, and finer than uvloop's own."""

    def __init__(self) -> None:
        super().__init__()
        self._running_time = RunningTime(time.monotonic())
        self._tick()

    @property
    def away(self) -> float:
        """Seconds slept so far: `time()` is behind the machine's clock by so much."""
        return self._running_time.away

    def time(self) -> float:
        return self._running_time.at(time.monotonic())

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = RunningTimer(self.time() + delay, callback, args, self, context)
        timer.armed = super().call_later(delay, self._due, timer)
        return timer

    def _due(self, timer: RunningTimer) -> None:
        left = timer.when() - self.time()
        if left > EARLY_SECONDS:
            timer.armed = super().call_later(left, self._due, timer)
        else:
            timer._run()

    def _tick(self) -> None:
        slept = self._running_time.tick(time.monotonic())
        if slept >= TOLD_SECONDS:
            log.warning("was_away", seconds=round(slept, 3))
        super().call_later(TICK_SECONDS, self._tick)
