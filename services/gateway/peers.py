"""What a gateway hears of the others: a router took office, a worker died, the bus is back."""

import asyncio

from livescale.services.gateway.streams import Streams
from livescale.shared.bus.contract import Bus, Subscription
from livescale.shared.messages.membership import LeaseChanged, Report, RouterReport
from livescale.shared.subjects import HEARTBEAT, LEASE


class Peers:
    """Tells the streams. Nobody is asked: requests go on by themselves unless one of these happens."""

    def __init__(self, bus: Bus, streams: Streams) -> None:
        self._bus = bus
        self._streams = streams
        self._router_epoch = 0

    async def run(self) -> None:
        routers = await self._bus.subscribe(HEARTBEAT, service="router")
        leases = await self._bus.subscribe(LEASE)
        self._bus.watch_connection(self._connection_changed)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_routers(routers), name="routers")
            group.create_task(self._follow_leases(leases), name="leases")

    async def _follow_routers(self, reports: Subscription[Report]) -> None:
        async for received in reports:
            report = received.message
            # Who stands by only beats; and who is followed by another has a lower epoch, however late it wakes.
            if isinstance(report, RouterReport) and report.epoch > self._router_epoch:
                self._router_epoch = report.epoch
                self._streams.router_changed()

    async def _follow_leases(self, leases: Subscription[LeaseChanged]) -> None:
        async for received in leases:
            change = received.message
            if change.service == "worker" and change.state == "dead":
                self._streams.worker_died(change.id, change.reason)

    def _connection_changed(self, connected: bool) -> None:
        if connected:
            self._streams.reconnected()
