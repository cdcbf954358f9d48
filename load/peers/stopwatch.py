"""CPU time of this process and of all its threads: what others take of the core does not count."""

import time
from itertools import pairwise

from livescale.load.peers.questions import Took


class Stopwatch:
    """Runs from when it is made; each mark ends a step."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._marks = [time.process_time()]

    def mark(self) -> None:
        self._marks.append(time.process_time())

    def took(self) -> Took:
        """The steps between marks."""
        steps = [after - before for before, after in pairwise(self._marks)]
        return Took(steps, time.monotonic() - self._began)
