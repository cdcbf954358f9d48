"""The router's process.

One of several routers is in office and the others stand by. One that loses the office queues behind the others.
"""

import asyncio

from livescale.services.router.metrics import RouterMetrics
from livescale.services.router.office import Office
from livescale.services.router.settings import RouterSettings
from livescale.services.router.standby import Standby
from livescale.shared.bus.contract import Subscription
from livescale.shared.messages.membership import Beat, LeaseChanged, Report, RouterReport
from livescale.shared.process.run import World, run_process
from livescale.shared.subjects import LEASE


class Router:
    """Waits for the office, holds it as long as it may, and waits again. `office` is None while the router stands by;
    each office begins with what the workers say, and not with what an earlier one knew."""

    def __init__(self, world: World, settings: RouterSettings) -> None:
        self._world = world
        self._settings = settings
        self._membership = world.membership("router", report=self._report, on_stale=self._stale)
        self._metrics = RouterMetrics(world.telemetry)
        self._standby = Standby(world.bus, self._membership, world.info.id)
        self.office: Office | None = None

    async def run(self) -> None:
        leases = await self._world.bus.subscribe(LEASE)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_leases(leases), name="leases")
            group.create_task(self._membership.run(), name="membership")
            while True:
                snapshot = await self._standby.wait()
                self.office = Office(self._world, self._settings, self._membership, self._standby, self._metrics)
                self._metrics.holds_office(True)
                try:
                    await self.office.hold(snapshot)
                finally:
                    self.office = None
                self._metrics.holds_office(False)
                self._membership.changed()

    async def why_not_ready(self) -> str | None:
        """Why it does not serve its role just now; None where it does."""
        # A router that stands by does what it is there for.
        if self.office is not None and not self.office.tenure.is_sure():
            return "the registry has not confirmed that it is still in office"
        return await self._membership.why_not_ready()

    def _stale(self) -> None:
        if self.office is not None:
            self.office.tenure.doubt("the registry had declared this router dead")

    async def _follow_leases(self, leases: Subscription[LeaseChanged]) -> None:
        async for received in leases:
            self._standby.look_again()
            if self.office is not None:
                self.office.on_lease(received.message)

    def _report(self, epoch: int) -> Report:
        if self.office is None:
            return Beat(service="router", id=self._world.info.id, epoch=epoch)
        return RouterReport(id=self._world.info.id, epoch=epoch, queues=self.office.queues())


def main(settings: RouterSettings) -> None:
    run_process(settings, "router", lambda world: Router(world, settings))
