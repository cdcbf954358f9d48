"""The clock and fresh ids, which actors get from outside so that tests can replace them, and the event loop of every
process: uvloop, with timers in running time.

Running time is how long a process has been awake, from readings of the machine's clock. A process sleeps when it is
stopped, or when the machine's CPU is taken away: the clock goes on, but the process hears nothing. Peers that seemed
silent meanwhile are not at fault, so timeouts count the running time of the process that waits. Running time follows
the clock, but advances by at most `MOST_SECONDS` from one tick to the next.

After a sleep, all timers of an ordinary loop are due before any message that arrived meanwhile is read: every deadline
passes, and every peer seems silent. Here they are due only once the process has been awake for that long. This holds
for all timers: `asyncio.timeout`, `asyncio.sleep` and libraries.
"""

import asyncio
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from time import monotonic
from typing import Any, Protocol, TypeVarTuple, cast

import structlog
import uvloop

ID_BYTES = 6


def seconds_away(loop: asyncio.AbstractEventLoop) -> float:
    """How many seconds the loop's time is behind the machine's, because its process slept; 0 for most loops."""
    seconds: float = getattr(loop, "away", 0.0)
    return seconds


def own_pid() -> int:
    """The id of this process, or of the simulated one that the caller runs in, where the running loop has such."""
    pid: int | None = getattr(asyncio.get_running_loop(), "pid", None)
    return os.getpid() if pid is None else pid


class Clock(Protocol):
    """`now()` never goes back and is for durations; `wall()` is seconds since the epoch, for what others read.

    `away`: seconds that this process has slept, stopped or its machine without a processor. `now()` leaves them out.
    """

    @property
    def away(self) -> float: ...

    def now(self) -> float: ...

    def wall(self) -> float: ...


class SystemClock:
    """The machine's clock, for tools and tests that do not judge whether others are silent."""

    away = 0.0

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class RunningClock:
    """The clock of a process: the time of the event loop that it is made in. Any thread may ask for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()  # asking for it each time is a system call
        self._can_be_away = hasattr(self._loop, "away")

    @property
    def away(self) -> float:
        seconds: float = self._loop.away if self._can_be_away else 0.0  # type: ignore[attr-defined]
        return seconds

    def now(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return time.time()


class Ids(Protocol):
    """Makes fresh ids, which match `[a-z0-9-]+`, and secrets."""

    def new(self, prefix: str) -> str: ...

    def secret(self) -> bytes: ...


class RandomIds:
    """Makes ids that are unique everywhere, and secrets of 32 bytes that cannot be guessed."""

    def new(self, prefix: str) -> str:
        return f"{prefix}-{os.urandom(ID_BYTES).hex()}"

    def secret(self) -> bytes:
        return secrets.token_bytes(32)


class CountedIds:
    """Ids that are the same in every run: `req-1`, `req-2`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def new(self, prefix: str) -> str:
        self._counts[prefix] += 1
        return f"{prefix}-{self._counts[prefix]}"

    def secret(self) -> bytes:
        return self.new("secret").encode()


TICK_SECONDS = 0.1
MOST_SECONDS = 0.25  # ticks are late on a busy machine

Ts = TypeVarTuple("Ts")

EARLY_SECONDS = 0.002  # libuv counts in milliseconds
TOLD_SECONDS = 0.5  # a shorter sleep is nothing to tell of

log = structlog.get_logger()


class RunningTime:
    """Computes running time. Call `tick` every `TICK_SECONDS`. `at` never goes back, and any thread may call it.

    `bounds`: the latest reading of the machine's clock that counts before the next tick, and the seconds slept so far.
    Running time is a reading, but at most the first, less the second.
    """

    def __init__(self, reading: float) -> None:
        self.bounds = reading + MOST_SECONDS, 0.0  # both in one: another thread reads them together

    @property
    def away(self) -> float:
        """Seconds slept since this object was made."""
        return self.bounds[1]

    def at(self, reading: float) -> float:
        latest, away = self.bounds
        return (reading if reading < latest else latest) - away

    def tick(self, reading: float) -> float:
        """Take a reading of the machine's clock; the seconds slept since the tick before."""
        latest, away = self.bounds
        slept = max(0.0, reading - latest)
        self.bounds = reading + MOST_SECONDS, away + slept
        return slept


class RunningTimer:
    """A timer in running time, with the methods of an `asyncio.TimerHandle`, which takes longer to make.

    `arm` sets a timer of the machine's clock, which is always the one behind this one.
    """

    __slots__ = ("_args", "_armed", "_callback", "_context", "_loop", "_when")

    def __init__(
        self,
        loop: "RunningLoop",
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> None:
        self._loop = loop
        self._when = when
        self._callback = callback
        self._args = args
        self._context = context

    def when(self) -> float:
        """The running time, in seconds, at which the callback is due."""
        return self._when

    def cancel(self) -> None:
        self._armed.cancel()

    def cancelled(self) -> bool:
        return self._armed.cancelled()

    def arm(self, delay: float) -> None:
        """Look after `delay` seconds of the machine's clock whether it is due."""
        self._armed = self._loop.call_by_machine(delay, self._due, self._context)

    def _due(self) -> None:
        left = self._when - self._loop.time()
        if left > EARLY_SECONDS:
            self.arm(left)
        else:
            self._callback(*self._args)


class RunningLoop(uvloop.Loop):
    """uvloop's loop whose `time()`, and with it every timer, is running time; it is finer than uvloop's own.

    Every request takes dozens of looks at the time, and several timers: they are written for speed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running_time = RunningTime(monotonic())
        self._tick()

    @property
    def away(self) -> float:
        """Seconds slept so far: `time()` is behind the machine's clock by so much."""
        return self._running_time.bounds[1]

    def time(self) -> float:
        latest, away = self._running_time.bounds
        reading = monotonic()
        return (reading if reading < latest else latest) - away  # as `RunningTime.at`, without a call

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = RunningTimer(self, self.time() + delay, callback, args, context)
        timer.arm(delay)
        return cast("asyncio.TimerHandle", timer)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = RunningTimer(self, when, callback, args, context)
        timer.arm(when - self.time())
        return cast("asyncio.TimerHandle", timer)

    def call_by_machine(
        self, delay: float, callback: Callable[[], object], context: Context | None
    ) -> asyncio.TimerHandle:
        """Call back after `delay` seconds of the machine's clock, however much of them this process sleeps."""
        return super().call_later(delay, callback, context=context)

    def _tick(self) -> None:
        slept = self._running_time.tick(monotonic())
        if slept >= TOLD_SECONDS:
            log.warning("was_away", seconds=round(slept, 3))
        super().call_later(TICK_SECONDS, self._tick)
