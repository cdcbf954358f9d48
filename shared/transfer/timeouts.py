"""When a flow is given up. Pure: time is an argument."""

from dataclasses import dataclass

FADING = 7 / 8  # of what a slow chunk counts, with every chunk after it


@dataclass(frozen=True)
class Timeouts:
    """How long a flow may be silent before it is given up.

    Until the first chunk has shown how fast chunks move it is `first` seconds; then `factor` times what they took of
    late, but at least `least` seconds. A sender waits `first` seconds for chunks that it does not have yet, and sends
    heartbeats meanwhile.
    """

    first: float = 30.0
    least: float = 1.0
    factor: float = 8.0

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between two heartbeats of a sender; a few of them may be late."""
        return self.least / 4


class AdaptiveTimeout:
    """Follows how fast the chunks of a flow move, `window` of them under way, and says when it is overdue."""

    def __init__(self, timeouts: Timeouts, window: int, now: float) -> None:
        self._timeouts = timeouts
        self._window = window
        self._since = now
        self._seconds: float | None = None  # for a chunk, the slowest of late: contention rises suddenly

    def restart(self, now: float) -> None:
        """Note a sign of the other end, or that it only now has something to do: its silence begins anew."""
        self._since = now

    def moved(self, now: float) -> None:
        """Note that a chunk arrived, or that the receiver took it."""
        self._seconds = max(now - self._since, (self._seconds or 0.0) * FADING)
        self.restart(now)

    @property
    def limit(self) -> float:
        """How many seconds the flow may be silent, by how fast its chunks moved of late."""
        if self._seconds is None:
            return self._timeouts.first
        return max(self._timeouts.least, self._timeouts.factor * self._window * self._seconds)

    @property
    def due(self) -> float:
        """The moment by which something has to come, in the time that `now` is given in."""
        return self._since + self.limit
