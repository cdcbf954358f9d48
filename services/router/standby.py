"""Which of several routers serves: of those that live, the one that joined first. The others stand by."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

import structlog

from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.membership import Member
from livescale.shared.messages.registry import AskSnapshot, Snapshot
from livescale.shared.process.membership import Membership
from livescale.shared.subjects import SNAPSHOT

CALL_SECONDS = 2.0
LOOK_SECONDS = 0.5  # beside every change of a lease

Place = tuple[int, str]  # in the line of routers: its epoch and id

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

    async def look(self) -> tuple[Place, Snapshot | None]:
        """This router's own place, once it has joined, and the registry's picture; None where it does not answer."""
        self._news.clear()
        epoch = await self._membership.joined()
        try:
            return (epoch, self._id), await self._bus.call(SNAPSHOT, AskSnapshot(), timeout=CALL_SECONDS)
        except BusError as error:
            log.debug("members_unknown", error=str(error))
            return (epoch, self._id), None

    async def pause(self) -> None:
        """Until it is time to look again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._news.wait()

    async def wait(self) -> Snapshot:
        """Until it is this router's turn; the registry's picture at that moment."""
        while True:
            own, snapshot = await self.look()
            if snapshot is not None and first_in_line(snapshot.members) == own:
                log.info("router_takes_office", epoch=own[0])
                return snapshot
            await self.pause()


def first_in_line(members: Iterable[Member]) -> Place | None:
    """Which router is in office, in the registry's eyes.

    A suspect still is: it may only be slow, and two would be worse than a pause.
    """
    return min(
        ((one.epoch, one.id) for one in members if one.service == "router" and one.lease != "dead"), default=None
    )
