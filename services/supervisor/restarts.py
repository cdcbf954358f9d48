"""When a process that ended is started again."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Restart:
    """Start it again after `delay_seconds`."""

    delay_seconds: float
    reason: str


@dataclass(frozen=True)
class GiveUp:
    """It will not live; say so instead of trying for ever."""

    reason: str


class RestartPolicy:
    """Restarts with doubling delays; gives up after `most_quick_deaths` lives in a row shorter than `quick_seconds`."""

    def __init__(
        self,
        *,
        quick_seconds: float = 10.0,
        most_quick_deaths: int = 5,
        first_delay_seconds: float = 0.1,
        longest_delay_seconds: float = 5.0,
    ) -> None:
        self._quick_seconds = quick_seconds
        self._most_quick_deaths = most_quick_deaths
        self._first_delay_seconds = first_delay_seconds
        self._longest_delay_seconds = longest_delay_seconds
        self._quick_deaths = 0

    def after_death(self, lived_seconds: float, status: str) -> Restart | GiveUp:
        """What to do about a process that lived so long and ended like that."""
        if lived_seconds >= self._quick_seconds:
            self._quick_deaths = 0
            return Restart(self._first_delay_seconds, f"{status} after {lived_seconds:.0f} s")
        self._quick_deaths += 1
        if self._quick_deaths >= self._most_quick_deaths:
            return GiveUp(f"{status}, the {self._quick_deaths}th time within {self._quick_seconds:.0f} s of its start")
        delay = min(self._first_delay_seconds * 2 ** (self._quick_deaths - 1), self._longest_delay_seconds)
        return Restart(delay, f"{status} after {lived_seconds:.1f} s")
