"""What a bench hears of the system that it measures: what workers and routers report, and which processes were lost.

A sample that a process was lost in is taken again, as after a stall. A lease may end where nothing stood still for
long: the process was late again and again, or it was the bench's turn.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from livescale.load.bench.samples import FAILURES, BenchFailed, Disturbed
from livescale.shared.bus.contract import Bus, Subscription
from livescale.shared.messages.membership import LeaseChanged, RouterReport, ServiceName, WorkerReport
from livescale.shared.runtime.waiting import Changes
from livescale.shared.subjects import HEARTBEAT, LEASE

T = TypeVar("T")

HOLDERS: frozenset[ServiceName] = frozenset({"worker", "host"})  # what may be source or target of a scale
PATIENCE_SECONDS = 60.0


class Losses:
    """The processes of `services` that were lost since this object was made. `on_loss` is called at each."""

    def __init__(self, services: Collection[ServiceName] = HOLDERS, on_loss: Callable[[], None] = lambda: None) -> None:
        self._services = services
        self._on_loss = on_loss
        self._found: list[str] = []

    def hear(self, change: LeaseChanged) -> None:
        """Take what the registry says of a process."""
        if change.state == "dead" and change.service in self._services:
            self._found.append(f"{change.id} was lost ({change.reason})")
            self._on_loss()

    def check(self, so: str = "") -> None:
        """Raises Disturbed where one was lost; `so` is what came of it."""
        if self._found:
            raise Disturbed("; ".join([*self._found, so]) if so else "; ".join(self._found))

    async def over(self, sample: Callable[[], Awaitable[T]]) -> T:
        """Take the sample. Raises Disturbed where one is lost meanwhile, whether or not the sample fails for it."""
        try:
            taken = await sample()
        except FAILURES as error:
            self.check(str(error))
            raise
        self.check()
        return taken


@dataclass
class Watch:
    """The last reports of workers, how many requests the router has, and which processes were lost."""

    services: Collection[ServiceName] = HOLDERS  # whose loss spoils a sample
    workers: dict[str, WorkerReport] = field(default_factory=dict)
    requests: int = 0
    changes: Changes = field(default_factory=Changes)
    losses: Losses = field(init=False)

    def __post_init__(self) -> None:
        self.losses = Losses(self.services, self.changes.tell)

    def hear(self, report: object) -> None:
        match report:
            case WorkerReport():
                self.workers[report.id] = report
            case RouterReport():
                self.requests = sum(queue.waiting_requests + queue.running for queue in report.queues)
        self.changes.tell()

    def serving(self) -> list[str]:
        return sorted(report.id for report in self.workers.values() if report.state == "serving")

    def busy(self) -> list[str]:
        loads = ((report.id, report.load) for report in self.workers.values())
        return sorted(id for id, load in loads if load is not None and load.running_requests + load.waiting_requests)

    def traffic(self) -> float:
        """Bytes a second that serving moved of late, of the worker that has most."""
        moved = (sum(each.sent + each.received for each in report.traffic or ()) for report in self.workers.values())
        return max(moved, default=0.0)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Return once that is true. Raises BenchFailed where it takes too long, Disturbed where a process is lost."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not holds():
                    self.losses.check(f"it is not yet true that {what}")
                    await self.changes.wait()
        except TimeoutError:
            raise BenchFailed(f"after {PATIENCE_SECONDS:g} s it is not yet true that {what}") from None

    async def until_quiet(self) -> None:
        """Return once no worker and no router has a request. Raises as `until` does."""
        await self.until(lambda: not self.busy() and not self.requests, "all is quiet")


@asynccontextmanager
async def heard(bus: Bus, losses: Losses) -> AsyncIterator[None]:
    """`losses` hears what the registry of this bus says, as long as the block of code runs."""
    changes = await bus.subscribe(LEASE)
    hearing = asyncio.create_task(_hear(changes, losses))
    try:
        yield
    finally:
        hearing.cancel()
        await asyncio.wait([hearing])
        await changes.close()


async def _hear(changes: Subscription[LeaseChanged], losses: Losses) -> None:
    async for received in changes:
        losses.hear(received.message)


@asynccontextmanager
async def following(bus: Bus, watch: Watch) -> AsyncIterator[None]:
    """`watch` hears of this bus, as long as the block of code runs."""
    async with heard(bus, watch.losses):
        hearing = asyncio.create_task(follow(bus, watch))
        try:
            yield
        finally:
            hearing.cancel()
            await asyncio.wait([hearing])


async def follow(bus: Bus, watch: Watch) -> None:
    async for received in await bus.subscribe(HEARTBEAT):
        watch.hear(received.message)
