"""The clock of simulated processes, and that of the code that watches them."""

from livescale.shared.runtime.clock import RunningClock
from livescale.shared.simulation.virtual_time import running_loop


class VirtualClock(RunningClock):
    """The clock of simulated processes: wall time follows the loop as well, which shows zero at `epoch`."""

    def __init__(self, epoch: float) -> None:
        super().__init__()
        self._virtual = running_loop()
        self._epoch = epoch

    # Asked at every message: without a sleep, which is nearly always, these leave out calls.

    @property
    def away(self) -> float:
        return self._virtual.away if self._virtual.slept else 0.0

    def now(self) -> float:
        return self._virtual.time() if self._virtual.slept else self._virtual.now

    def wall(self) -> float:
        if self._virtual.slept:
            return self._epoch + self.now() + self.away
        return self._epoch + self._virtual.now


def machine_time() -> float:
    """Seconds since the start of the simulation, for code that watches it; each process has a time of its own, which
    leaves out its sleeps."""
    return running_loop().now
