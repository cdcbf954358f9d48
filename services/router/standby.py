"""Which of several routers serves: of those that live, the one that joined first. The others stand by.

A router that was away may have lost the office; then it asks the registry before it does anything else.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

import structlog

from livescale.shared.bus.contract import Bus, BusError, Refusal
from livescale.shared.messages.membership import Member
from livescale.shared.messages.registry import AskSnapshot, Snapshot
from livescale.shared.process.membership import Membership
from livescale.shared.runtime.clock import Clock
from livescale.shared.subjects import SNAPSHOT

CALL_SECONDS = 2.0
LOOK_SECONDS = 0.5  # it also looks at every change of a lease
AWAY_SECONDS = 1.0  # shorter than a lease: a router that slept for longer may have lost the office
DOUBT_SECONDS = 0.5  # how long a request waits while the office is in doubt; its gateway waits longer

JoinOrder = tuple[int, str]  # of a router in the order of joining: its epoch and id

log = structlog.get_logger()


class Standby:
    """Waits for this router's turn. Call `look_again` when a lease has changed."""

    def __init__(self, bus: Bus, membership: Membership, id: str) -> None:
        self._bus = bus
        self._membership = membership
        self._id = id
        self._news = asyncio.Event()

    def look_again(self) -> None:
        """End the current pause, as a change of a lease may have made it this router's turn."""
        self._news.set()

    async def look(self) -> tuple[JoinOrder, Snapshot | None]:
        """Return this router's own place, once it has joined, and the registry's snapshot, which is None where the
        registry does not answer."""
        self._news.clear()
        epoch = await self._membership.joined()
        try:
            return (epoch, self._id), await self._bus.call(SNAPSHOT, AskSnapshot(), timeout=CALL_SECONDS)
        except BusError as error:
            log.debug("members_unknown", error=str(error))
            return (epoch, self._id), None

    async def pause(self) -> None:
        """Wait until a lease has changed, but not for longer than LOOK_SECONDS."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._news.wait()

    async def wait(self) -> Snapshot:
        """Wait for this router's turn, and return the registry's snapshot of that moment."""
        while True:
            own, snapshot = await self.look()
            if snapshot is not None and first_in_line(snapshot.members) == own:
                log.info("router_takes_office", epoch=own[0])
                return snapshot
            await self.pause()


def first_in_line(members: Iterable[Member]) -> JoinOrder | None:
    """The place of the router that is in office, in the registry's eyes; None where there is none.

    A suspect router is still in office: it may only be slow, and two routers at once would be worse than a pause.
    """
    return min(
        ((one.epoch, one.id) for one in members if one.service == "router" and one.lease != "dead"), default=None
    )


class Tenure:
    """Whether the office is still this router's: it is sure, or in doubt, or another router is in office (`over` is
    set).

    `was_away` is called when this process has slept for longer than a moment, `confirmed` once the registry has said
    that the office is still this router's.
    """

    def __init__(
        self,
        clock: Clock,
        standby: Standby,
        calls: asyncio.TaskGroup,
        was_away: Callable[[], None],
        confirmed: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._standby = standby
        self._calls = calls
        self._was_away = was_away
        self._confirmed = confirmed
        self._away = clock.away  # seconds of sleep that were noticed so far
        self._sure = asyncio.Event()
        self._sure.set()
        self.over = asyncio.Event()

    def doubt(self, reason: str) -> None:
        """Another router may have the office: ask the registry before anything else is done."""
        if self._sure.is_set() and not self.over.is_set():
            log.warning("office_in_doubt", reason=reason)
            self._sure.clear()
            self._calls.create_task(self._confirm(), name="confirmation")

    def end(self) -> None:
        """This term is over, whoever is in office now: nothing that still comes in is taken."""
        self.over.set()
        self._sure.clear()

    def is_sure(self) -> bool:
        """Whether this router may act, at this very moment."""
        if self._clock.away != self._away:
            self.notice_sleep()
        return self._sure.is_set()

    def notice_sleep(self) -> None:
        """Begin to doubt if this process has slept. Messages that are read after a sleep went to a successor as well,
        if there is one."""
        away = self._clock.away
        if away == self._away:
            return
        slept, self._away = away - self._away, away
        if slept >= AWAY_SECONDS:
            self._was_away()
            self.doubt(f"away for {slept:.1f} s")

    async def be_sure(self) -> None:
        """Wait for a moment while the office is in doubt. Raises Refusal 503 where it stays so, or the term is over."""
        if not self.is_sure() and not self.over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(DOUBT_SECONDS):
                    await self._sure.wait()
        if not self._sure.is_set():
            raise Refusal(
                503, "this router may not be the active one any more; try again in a moment", retry_after_ms=500
            )

    async def _confirm(self) -> None:
        """Ask the registry until it names the router in office. Where it names none, this router has not joined again
        yet."""
        while True:
            own, snapshot = await self._standby.look()
            first = None if snapshot is None else first_in_line(snapshot.members)
            if first == own:
                break
            if first is not None:
                log.warning("router_steps_aside", successor=first[1])
                self.end()
                return
            await self._standby.pause()
        log.info("office_confirmed", epoch=own[0])
        self._sure.set()
        self._confirmed()
