"""Which of several routers serves: of those that live, the one that joined first. The others stand by."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

import structlog

from shared.bus.contract import Bus, BusError
from shared.membership import Membership
from shared.messages.membership import AskSnapshot, Member, Snapshot
from shared.subjects import SNAPSHOT

CALL_SECONDS = 2.0
LOOK_SECONDS = 0.5  # beside every change of a lease

log = structlog.get_logger()


class Standby:
    """Call `look_again` when a lease changed."""

    def __init__(self, bus: Bus, membership: Membership, id: str) -> None:
        self._bus = bus
        self._membership = membership
        self._id = id
        self._news = asyncio.Event()

    def look_again(self) -> None:
        self._news.set()

    async def wait(self) -> Snapshot:
        """Until it is this router's turn; the registry's picture at that moment."""
        while True:
            self._news.clear()
            epoch = await self._membership.joined()
            try:
                snapshot = await self._bus.call(SNAPSHOT, AskSnapshot(), timeout=CALL_SECONDS)
            except BusError as error:
                log.debug("members_unknown", error=str(error))
            else:
                if takes_office(self._id, epoch, snapshot.members):
                    log.info("router_takes_office", epoch=epoch)
                    return snapshot
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._news.wait()


def takes_office(id: str, epoch: int, members: Iterable[Member]) -> bool:
    """Whether the router `id` of this epoch is in office, in the registry's eyes.

    A suspect still is: it may only be slow, and two would be worse than a pause.
    """
    living = [(one.epoch, one.id) for one in members if one.service == "router" and one.lease != "dead"]
    return bool(living) and min(living) == (epoch, id)
