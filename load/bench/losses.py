"""Which processes of a system were declared dead: a sample that one was lost in is taken again, as after a stall.

A lease may end where nothing stood still for long: the process was late again and again, or it was the bench's turn.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import TypeVar

from livescale.load.bench.samples import FAILURES, Disturbed
from livescale.services.supervisor.processes import Echo
from livescale.services.supervisor.settings import StackSettings
from livescale.services.supervisor.stack import Progress, Stack
from livescale.shared.bus.contract import Bus, Subscription
from livescale.shared.messages.membership import LeaseChanged, ServiceName
from livescale.shared.subjects import LEASE

T = TypeVar("T")

HOLDERS: frozenset[ServiceName] = frozenset({"worker", "host"})  # who may be a source or a target of a scale


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
async def watched_stack(settings: StackSettings, progress: Progress, echo: Echo) -> AsyncIterator[tuple[Stack, Losses]]:
    """A system, and who is lost in it from when it is ready."""
    losses = Losses()
    async with Stack(settings, progress=progress, echo=echo) as stack, heard(stack.bus, losses):
        yield stack, losses
