"""When a flow is given up. Pure: time is an argument."""

from dataclasses import dataclass

FADING = 7 / 8  # of what a slow chunk counts, with every chunk after it


@dataclass(frozen=True)
class Timeouts:
    """`first` seconds of silence until the first chunk has shown how fast they move; then `factor` times what they took
    of late, but at least `least`. A sender that has nothing to send waits for it `first` seconds too, and shows all the
    while that it is there."""

    first: float = 30.0
    least: float = 1.0
    factor: float = 8.0

    @property
    def heartbeat_seconds(self) -> float:
        """So often a sender shows that it is there: a few signs may be late."""
        return self.least / 4


class AdaptiveTimeout:
    """Follows how fast the chunks of a flow move, `window` of them under way, and says when it is overdue."""

    def __init__(self, timeouts: Timeouts, window: int, now: float) -> None:
        self._timeouts = timeouts
        self._window = window
        self._since = now
        self._seconds: float | None = None  # for a chunk, the slowest of late: contention rises suddenly

    def restart(self, now: float) -> None:
        """The other end shows that it is there, or was only now given something to do."""
        self._since = now

    def moved(self, now: float) -> None:
        """A chunk arrived, or was taken by the receiver."""
        self._seconds = max(now - self._since, (self._seconds or 0.0) * FADING)
        self.restart(now)

    @property
    def limit(self) -> float:
        """Seconds that the flow may be silent."""
        if self._seconds is None:
            return self._timeouts.first
        return max(self._timeouts.least, self._timeouts.factor * self._window * self._seconds)

    @property
    def due(self) -> float:
        """By when something has to come."""
        return self._since + self.limit
