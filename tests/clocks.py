"""A clock for tests that make it before their event loop."""

import asyncio

from livescale.shared.runtime.clock import seconds_away


class LoopClock:
    """The time of whichever event loop runs; `epoch` is the wall time at which it shows zero."""

    def __init__(self, epoch: float) -> None:
        self._epoch = epoch

    @property
    def away(self) -> float:
        return seconds_away(asyncio.get_running_loop())

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return self._epoch + self.now() + self.away
