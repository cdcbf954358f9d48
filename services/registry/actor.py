"""The registry: it knows which processes are alive, which models there are, and which processes hold them."""

import asyncio

import structlog

from livescale.services.registry.adapter_versions import AdapterVersions
from livescale.services.registry.copies import CopyReconciler
from livescale.services.registry.join_checks import ANY_PLACE, JoinRules
from livescale.services.registry.leases import Leases, LeaseTimes
from livescale.services.registry.members import Members
from livescale.services.registry.models import Models
from livescale.services.registry.pool import Pool
from livescale.services.registry.saved import SavedState
from livescale.services.registry.settings import RegistrySettings
from livescale.shared.bus.contract import BusError
from livescale.shared.process.run import World

log = structlog.get_logger()


class Registry:
    """The only judge of which processes are alive, and the only keeper of the list of models.

    `Members` answers for processes and tells the whole picture, `Models` answers for models, and `CopyReconciler` makes
    hosts hold what the pool orders. After a restart the registry takes over what an earlier one had saved in the
    key-value store.
    """

    def __init__(self, world: World, settings: RegistrySettings, rules: JoinRules = ANY_PLACE) -> None:
        self._bus, self._clock, self._info = world.bus, world.clock, world.info
        self._leases = Leases(LeaseTimes(settings.suspect_seconds, settings.dead_seconds), world.info.id)
        self._pool = Pool(settings.host_caches())
        self._saved = SavedState(world.bus.kv)
        self._copies = CopyReconciler(world, self._pool, self._saved, self._leases.by_id, settings.suspect_seconds)
        self._members = Members(world, self._leases, self._pool, self._saved, rules.check, self._copies.look)
        self._adapters = AdapterVersions(self._saved)
        self._models = Models(world, self._pool, self._copies, self._adapters, settings.default_spec())
        self._membership = world.membership("registry")
        self._reconnected = asyncio.Event()

    async def run(self) -> None:
        await self._keep_events()
        await self._restore()
        self._bus.watch_connection(self._connection_changed)
        async with asyncio.TaskGroup() as group:
            await self._members.start(group)
            await self._bus.serve(self._info, [*self._members.endpoints, *self._models.endpoints])
            group.create_task(self._copies.run(), name="copies")
            group.create_task(self._saved.run(), name="saved")
            group.create_task(self._keep_events_again(), name="events")
            group.create_task(self._membership.run(), name="membership")

    async def why_not_ready(self) -> str | None:
        """Why it does not serve its role just now; None where it does."""
        return await self._membership.why_not_ready()

    async def _restore(self) -> None:
        models, members = await self._saved.load()
        for saved in models:
            self._pool.restore(*saved)
        self._adapters.restore(await self._saved.load_adapters(), self._clock.now())
        self._members.restore(members)

    def _connection_changed(self, connected: bool) -> None:
        if connected:
            self._leases.thaw(self._clock.now())
            self._pool.doubt_readers()
            self._saved.save_again()
            self._reconnected.set()
        else:
            self._leases.freeze()

    async def _keep_events_again(self) -> None:
        """A server that was replaced may have forgotten that it was asked to."""
        while True:
            await self._reconnected.wait()
            self._reconnected.clear()
            await self._keep_events()

    async def _keep_events(self) -> None:
        try:
            await self._bus.keep_events()
        except BusError as error:
            log.warning("events_are_not_kept", error=str(error))
