"""Delays a worker's sends for the steps that it computes, as the policy in `SendShare` says."""

import asyncio
import time
from collections.abc import Callable

import structlog

from livescale.services.worker.engine.send_share import SendShare

log = structlog.get_logger()


def loop_clocks() -> tuple[float, float]:
    """Return the time, and the seconds of the processor that this thread has taken."""
    return time.perf_counter(), time.thread_time()


class SendPauses:
    """Pauses before chunks are sent, for use on the event loop's thread, whose time is shared out."""

    def __init__(self, clocks: Callable[[], tuple[float, float]] = loop_clocks) -> None:
        """`clocks` returns the time, and the seconds of the processor that the loop has taken."""
        self._clocks = clocks
        self._share = SendShare()
        self._one_at_a_time = asyncio.Lock()

    def step_begins(self) -> None:
        """Note that a step begins to compute: from now on sending takes time from it."""
        self._share.step_begins(*self._clocks())

    def step_ends(self, lost_seconds: float) -> None:
        """Note that the step ends. In `lost_seconds` of it its thread wanted to compute and did not."""
        self._share.step_ends(*self._clocks(), lost_seconds)

    async def wait(self) -> float:
        """Return when another chunk may be sent, with the seconds that it was made to wait."""
        # Clocks are not read for nothing: there are hundreds of chunks a second.
        if not self._share.is_computing or self._share.pause(*self._clocks()) is None:
            return 0.0
        async with self._one_at_a_time:
            pause = self._share.pause(*self._clocks())
            if pause is None:
                return 0.0
            log.debug("send_paused", seconds=pause.seconds, reason=pause.reason)
            await asyncio.sleep(pause.seconds)
            return pause.seconds
