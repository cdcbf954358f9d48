"""Takes a bench's samples, and takes one again if the machine stood still meanwhile, or a process was lost: such a
sample measures the stall and nothing else.

What a stall may have broken is renewed before the next try.
"""

import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from livescale.load.incidents import STALL_SECONDS, TICK_SECONDS, ClockTimes, RunIncident
from livescale.services.supervisor.processes import ChildFailed
from livescale.services.supervisor.stack import StackFailed
from livescale.shared.bus.contract import BusError
from livescale.shared.runtime.clock import SystemClock

T = TypeVar("T")

TRIES = 4  # of one sample
MOST_AGAIN = 1 / 3  # of all samples
PAUSE_SECONDS = 0.05  # busy machines are late by some milliseconds
MOST_STOOD = 0.05  # of a sample's time, in many short pauses
Tell = Callable[[str], None]


class BenchFailed(Exception):
    """A process of the bench failed or did not answer."""


class Disturbed(BenchFailed):
    """What was to be measured did not happen, for a reason that lies outside: the sample is taken again."""


# What a stall may end in: flows are given up, leases end, calls are not answered in time.
FAILURES = (BenchFailed, BusError, ChildFailed, StackFailed)


class Counts(msgspec.Struct, frozen=True):
    """Samples that count, and those that did not and were taken again."""

    taken: int
    again: int

    @property
    def is_void(self) -> bool:
        """More than that, and what is left was measured on a machine that was not there."""
        return self.again > MOST_AGAIN * self.taken

    def lines(self) -> list[str]:
        if not self.again:
            return []
        told = f"{self.again} samples were disturbed, mostly by stalls, and taken again; {self.taken} count."
        void = f"The run is void: that is more than {MOST_AGAIN:.0%} of them."
        return [told, void] if self.is_void else [told]


def nothing() -> None:
    """A sample that makes all that it needs itself leaves nothing that could be broken."""


class Samples:
    """Takes them, and counts. `stalls` watches for stalls as long as it is entered."""

    def __init__(self, tell: Tell, stalls: Callable[[], "StallWatch"] | None = None) -> None:
        self.taken = 0
        self.again = 0
        self._tell = tell
        self._stalls = stalls or StallWatch

    def counts(self) -> Counts:
        return Counts(self.taken, self.again)

    def take(self, sample: Callable[[], T], renew: Callable[[], None] = nothing) -> T:
        """Once more after a stall; `renew` makes anew what it may have left broken: a lease that ends a moment later
        would be the next sample's. What fails without a stall is raised as it is. Raises BenchFailed where a stall
        falls into every try."""
        for number in range(TRIES):
            failure: Exception | None = None
            with self._stalls() as watch:
                try:
                    if number:
                        renew()
                    result = sample()
                except FAILURES as error:
                    failure = error
            if self._counts(watch.found, failure):
                return result
        raise void()

    async def take_async(self, sample: Callable[[], Awaitable[T]], renew: Callable[[], Awaitable[None]]) -> T:
        """Take a sample as `take` does, on a running event loop."""
        for number in range(TRIES):
            failure: Exception | None = None
            with self._stalls() as watch:
                try:
                    if number:
                        await renew()
                    result = await sample()
                except FAILURES as error:
                    failure = error
            if self._counts(watch.found, failure):
                return result
        raise void()

    def _counts(self, stalls: list[RunIncident], failure: Exception | None) -> bool:
        """Whether it is a sample. Raises its failure where that is no stall's."""
        if stalls or isinstance(failure, Disturbed):
            self.again += 1
            ended = [] if failure is None else [str(failure)]
            self._tell(f"{'; '.join([*(stall.line for stall in stalls), *ended])}: this sample is taken again")
            return False
        if failure is not None:
            raise failure
        self.taken += 1
        return True


def void() -> BenchFailed:
    return BenchFailed(f"the run is void: {TRIES} tries of one sample were disturbed; run it again on a quiet machine")


class CoreTicks:
    """Finds how long a core stood still, from the moments at which a thread on it woke every `TICK_SECONDS`. Pure."""

    def __init__(self, core: int, now: ClockTimes) -> None:
        self._core = core
        self._began = self._last = now
        self._pauses: list[float] = []

    def on_tick(self, now: ClockTimes) -> None:
        """Take the time at which the thread has woken, which is late where the core stood still."""
        pause = elapsed(self._last, now) - TICK_SECONDS
        self._last = now
        if pause >= PAUSE_SECONDS:
            self._pauses.append(pause)

    def stall(self) -> RunIncident | None:
        """What the pauses come to, if they are long enough to spoil a sample: one of them, or all together."""
        stood, whole = sum(self._pauses), elapsed(self._began, self._last)
        if max(self._pauses, default=0.0) < STALL_SECONDS and stood < max(STALL_SECONDS, MOST_STOOD * whole):
            return None
        line = f"core {self._core} stood still for {stood:.1f} of {whole:.1f} s"
        return RunIncident(self._last.wall, "stall", line, stood)


def together(of_cores: Sequence[RunIncident | None]) -> list[RunIncident]:
    """The stalls of all cores, as one of the machine where none was spared."""
    stalls = [stall for stall in of_cores if stall is not None]
    if len(stalls) < len(of_cores):
        return stalls
    least = min(stalls, key=lambda stall: stall.seconds)
    return [RunIncident(least.at, "stall", f"the machine stood still for {least.seconds:.1f} s", least.seconds)]


def elapsed(since: ClockTimes, now: ClockTimes) -> float:
    """Seconds by the clock that went further: the wall's goes on where a whole machine is halted."""
    return max(now.steady - since.steady, now.wall - since.wall)


class StallWatch:
    """Watches every core that this process may use, as long as it is entered: `found` has the stalls afterwards.

    Each core has a thread of its own that looks at the clock. A hypervisor may hold up one core alone, as when it has
    to fetch the memory that is touched there; it does not count that as stolen time. A thread that may run anywhere
    would go on ticking on another core.
    """

    def __init__(self) -> None:
        self.found: list[RunIncident] = []
        self._clock = SystemClock()
        self._ended = threading.Event()
        now = self._times()
        self._ticks = {core: CoreTicks(core, now) for core in sorted(os.sched_getaffinity(0))}
        self._threads = [
            threading.Thread(target=self._watch, args=each, name="stall watch") for each in self._ticks.items()
        ]

    def __enter__(self) -> "StallWatch":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self.found = together([ticks.stall() for ticks in self._ticks.values()])

    def _watch(self, core: int, ticks: CoreTicks) -> None:
        with suppress(OSError):  # the core was taken away meanwhile: the thread runs on another one
            os.sched_setaffinity(0, {core})  # of this thread alone
        while not self._ended.wait(TICK_SECONDS):
            ticks.on_tick(self._times())
        ticks.on_tick(self._times())  # a stall that has only just ended

    def _times(self) -> ClockTimes:
        return ClockTimes(self._clock.now(), self._clock.wall())
