"""How many workers are in use over time, by what they and the registry say of them.

A worker is in use from its LOAD until it is spare again, or dead: loading and draining count.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from livescale.shared.bus.contract import Bus
from livescale.shared.messages.membership import LeaseChanged, WorkerReport
from livescale.shared.runtime.clock import SystemClock
from livescale.shared.subjects import HEARTBEAT, LEASE

Steps = list[tuple[float, float]]  # from when on, how much


class WorkersInUse:
    """Counts workers; `steps` has their number from each moment on at which it changed."""

    def __init__(self) -> None:
        self.steps: Steps = []
        self._busy = set[str]()

    def reported(self, report: WorkerReport, at: float) -> None:
        is_busy = report.state != "spare"
        if self.steps and is_busy == (report.id in self._busy):  # as nearly always
            return
        (self._busy.add if is_busy else self._busy.discard)(report.id)
        note(self.steps, at, len(self._busy))

    def lease_changed(self, change: LeaseChanged, at: float) -> None:
        if change.state == "dead":
            self._busy.discard(change.id)
            note(self.steps, at, len(self._busy))


def used_seconds(steps: Sequence[tuple[float, float]], start: float, end: float) -> float:
    """The worker-seconds between two times; a step is a time in seconds, and the count from then on."""
    edges = [(max(start, at), count) for at, count in steps if at < end] + [(end, 0.0)]
    return sum((after - at) * count for (at, count), (after, _) in itertools.pairwise(edges))


def note(steps: Steps, at: float, value: float) -> None:
    """Add a step, where the value is another one."""
    if not steps or steps[-1][1] != value:
        steps.append((at, value))


@asynccontextmanager
async def counting(bus: Bus) -> AsyncIterator[WorkersInUse]:
    """Workers in use, by the wall's time, as long as the block of code runs."""
    in_use, clock = WorkersInUse(), SystemClock()
    heartbeats, leases = await bus.subscribe(HEARTBEAT, service="worker"), await bus.subscribe(LEASE)

    async def hear() -> None:
        async for received in heartbeats:
            if isinstance(received.message, WorkerReport):
                in_use.reported(received.message, clock.wall())

    async def follow() -> None:
        async for change in leases:
            in_use.lease_changed(change.message, clock.wall())

    tasks = [asyncio.create_task(hear()), asyncio.create_task(follow())]
    try:
        yield in_use
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
