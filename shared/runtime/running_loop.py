"""The event loop of every process: uvloop, with timers in running time.

Running time is how long a process has been awake, from readings of the machine's clock. A process sleeps when it is
stopped, or when the machine's CPU is taken away: the clock goes on, but the process hears nothing. Peers that seemed
silent meanwhile are not at fault, so timeouts count the running time of the process that waits. Running time follows
the clock, but advances by at most `MOST_SECONDS` from one tick to the next.

After a sleep, all timers of an ordinary loop are due before any message that arrived meanwhile is read: every deadline
passes, and every peer seems silent. Here they are due only once the process has been awake for that long. This holds
for all timers: `asyncio.timeout`, `asyncio.sleep` and libraries.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

import structlog
import uvloop

TICK_SECONDS = 0.1
MOST_SECONDS = 0.25  # ticks are late on a busy machine

Ts = TypeVarTuple("Ts")

EARLY_SECONDS = 0.002  # libuv counts in milliseconds
TOLD_SECONDS = 0.5  # a shorter sleep is nothing to tell of

log = structlog.get_logger()


class RunningTime:
    """Computes running time. Call `tick` every `TICK_SECONDS`. `at` never goes back, and any thread may call it."""

    def __init__(self, reading: float) -> None:
        self._last = reading, 0.0  # of both in one: another thread reads them together

    @property
    def away(self) -> float:
        """Seconds slept since this object was made."""
        return self._last[1]

    def at(self, reading: float) -> float:
        ticked, away = self._last
        return min(reading, ticked + MOST_SECONDS) - away

    def tick(self, reading: float) -> float:
        """Take a reading of the machine's clock; the seconds slept since the tick before."""
        ticked, away = self._last
        slept = max(0.0, reading - ticked - MOST_SECONDS)
        self._last = reading, away + slept
        return slept


class RunningTimer(asyncio.TimerHandle):
    """A timer in running time; `armed` is the timer of the machine's clock behind it."""

    armed: asyncio.TimerHandle

    def cancel(self) -> None:
        self.armed.cancel()
        asyncio.Handle.cancel(self)  # a TimerHandle would tell its loop, which knows of the other alone


class RunningLoop(uvloop.Loop):
    """uvloop's loop whose `time()`, and with it every timer, is running time; it is finer than uvloop's own."""

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
