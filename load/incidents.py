"""Detects what goes wrong with a system under load: processes that die or restart, and stalls of the machine. Pure."""

from collections.abc import Mapping
from typing import Literal

import msgspec

TICK_SECONDS = 0.1
# So late a timer is by itself only where nothing ran: busy machines are late by some milliseconds.
STALL_SECONDS = 0.5

What = Literal["death", "restart", "stall"]


class RunIncident(msgspec.Struct, frozen=True):
    """`at` is its end, in seconds since the epoch; only a stall has a length."""

    at: float
    what: What
    line: str
    seconds: float = 0.0


class ClockTimes(msgspec.Struct, frozen=True):
    """One moment by the steady clock, and by the wall's, which goes on where a whole machine is halted."""

    steady: float
    wall: float


class Life(msgspec.Struct, frozen=True):
    """A process as its supervisor has it: whether it runs, and how often it was started."""

    pid: int | None
    starts: int


class Ticks:
    """Finds the times in which a process that should tick every `TICK_SECONDS` did not run."""

    def __init__(self, now: ClockTimes) -> None:
        self._last = now

    def on_tick(self, now: ClockTimes) -> RunIncident | None:
        stood = max(now.steady - self._last.steady, now.wall - self._last.wall) - TICK_SECONDS
        self._last = now
        if stood < STALL_SECONDS:
            return None
        return RunIncident(now.wall, "stall", f"the machine stood still for {stood:.1f} s", stood)


class Lives:
    """Finds which processes died and which were started again."""

    def __init__(self, lives: Mapping[str, Life]) -> None:
        self._lives = dict(lives)

    def on_look(self, lives: Mapping[str, Life], at: float) -> list[RunIncident]:
        found = [
            incident
            for name, life in sorted(lives.items())
            for incident in what_befell(name, self._lives.get(name, life), life, at)
        ]
        self._lives = dict(lives)
        return found


def what_befell(name: str, before: Life, now: Life, at: float) -> list[RunIncident]:
    """However much of it happened between two looks."""
    found = []
    if before.pid is not None and now.pid != before.pid:
        found.append(RunIncident(at, "death", f"{name} died"))
    if now.starts > before.starts:
        found.append(RunIncident(at, "restart", f"{name} was started again"))
    return found
