"""Hears what befalls processes and machines, and tells of it when it is asked."""

import asyncio
from collections.abc import Callable

from livescale.services.registry.incidents import Incidents
from livescale.shared.bus.contract import Bus, Context, Endpoint, Subscription
from livescale.shared.messages.membership import AskIncidents, IncidentList, Join, Member, ProcessEnded, WasAway
from livescale.shared.runtime.clock import Clock
from livescale.shared.subjects import AWAY, INCIDENTS, PROCESS


class Witness:
    """`members`: all that are known."""

    def __init__(self, bus: Bus, clock: Clock, members: Callable[[], list[Member]]) -> None:
        self._bus = bus
        self._clock = clock
        self._members = members
        self._incidents = Incidents()
        self.endpoint = Endpoint(INCIDENTS, self._last)

    async def run(self) -> None:
        aways, ends = await self._bus.subscribe(AWAY), await self._bus.subscribe(PROCESS)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_aways(aways), name="aways")
            group.create_task(self._follow_ends(ends), name="ends")

    def joined(self, join: Join, before: Member | None) -> None:
        self._incidents.joined(join.id, join.pid, before, self._clock.wall())

    def died(self, id: str, reason: str) -> None:
        self._incidents.died(id, reason, self._clock.wall())

    async def _last(self, ask: AskIncidents, context: Context) -> IncidentList:
        return IncidentList(incidents=self._incidents.last(ask.limit))

    async def _follow_aways(self, aways: Subscription[WasAway]) -> None:
        async for received in aways:
            self._incidents.away(received.message, self._members())

    async def _follow_ends(self, ends: Subscription[ProcessEnded]) -> None:
        async for received in ends:
            ended = received.message
            self._incidents.ended(ended.id, ended.reason, ended.at)
