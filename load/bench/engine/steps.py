"""When the steps of an engine ended, and how long those took that count."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from livescale.load.peers.protocol import StepSeconds
from livescale.services.worker.scheduling.batch import Batch


@dataclass(frozen=True)
class StepEnd:
    """A step: the process's CPU time and the clock at its end."""

    cpu: float
    wall: float
    prefill_rows: int = 0
    decode_rows: int = 0


class Steps:
    """Records when each step ends, from now on; `rows` is the number of rows that decode."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._ended = [StepEnd(time.process_time(), time.monotonic())]
        self._more = asyncio.Event()

    def add(self, batch: Batch) -> None:
        self._ended.append(StepEnd(time.process_time(), time.monotonic(), batch.prefill_rows, batch.decode_rows))
        self._more.set()
        self._more.clear()

    async def more(self) -> None:
        """Wait until one more step has ended, whatever it ran."""
        await self._more.wait()

    def alone(self, count: int) -> StepSeconds:
        """The first of the steps in which all decoded and nothing else ran."""
        pairs = list(pairwise(self._ended))
        return _between([pair for pair in pairs if self._is_alone(pair[1])][:count])

    def between_tokens(self) -> StepSeconds:
        """The steps from each one in which all rows decoded to the next such, whatever else ran between."""
        decoding = [self._ended[0], *(one for one in self._ended[1:] if one.decode_rows == self._rows)]
        return _between(list(pairwise(decoding)))

    @property
    def decoded(self) -> int:
        return sum(one.decode_rows for one in self._ended)

    def _is_alone(self, step: StepEnd) -> bool:
        return step.decode_rows == self._rows and step.prefill_rows == 0


def _between(pairs: Sequence[tuple[StepEnd, StepEnd]]) -> StepSeconds:
    return StepSeconds([after.cpu - before.cpu for before, after in pairs], sum(b.wall - a.wall for a, b in pairs))
