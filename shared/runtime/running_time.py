"""Running time: how long a process has been awake, from readings of the machine's clock. Pure.

A machine whose processor is taken away, or a process that is stopped, sleeps: the clock goes on and nothing is heard.
What was silent meanwhile is nobody's fault, so all that waits for a sign of somebody waits in the listener's running
time. It goes with the clock while somebody ticks, and from one tick to the next by no more than `MOST_SECONDS`.
"""

TICK_SECONDS = 0.1
MOST_SECONDS = 0.25  # ticks are late on a busy machine


class RunningTime:
    """Call `tick` every `TICK_SECONDS`. `at` never goes back, and may be asked by any thread."""

    def __init__(self, reading: float) -> None:
        self._last = reading, 0.0  # of both in one: another thread reads them together

    @property
    def away(self) -> float:
        """Seconds slept so far."""
        return self._last[1]

    def at(self, reading: float) -> float:
        ticked, away = self._last
        return min(reading, ticked + MOST_SECONDS) - away

    def tick(self, reading: float) -> float:
        """Seconds slept since the tick before."""
        ticked, away = self._last
        slept = max(0.0, reading - ticked - MOST_SECONDS)
        self._last = reading, away + slept
        return slept
