"""The registry: hears everyone, judges who is alive, knows which models there are and who holds them."""

import asyncio
from collections.abc import Mapping

import structlog

from livescale.services.registry.copies import READ_TIMEOUT_SECONDS, Copies
from livescale.services.registry.join_checks import check_kernels, check_place
from livescale.services.registry.leases import LEFT, LeaseMoved, Leases, LeaseTimes, SpokeFalse, SpokeStale
from livescale.services.registry.metrics import RegistryMetrics
from livescale.services.registry.model import check_spec, complete_spec
from livescale.services.registry.pool import Pool
from livescale.services.registry.saved import SavedState
from livescale.services.registry.settings import RegistrySettings
from livescale.services.registry.witness import Witness
from livescale.shared.bus.contract import BusError, Context, Endpoint, Refusal, Subscription
from livescale.shared.bus.seldom import SeldomLog
from livescale.shared.membership import Membership
from livescale.shared.messages.copies import CheckModel, ModelChecked
from livescale.shared.messages.membership import (
    AskModels,
    AskSnapshot,
    Beat,
    HostReport,
    Join,
    Joined,
    LeaseChanged,
    Leave,
    Member,
    ModelEntry,
    ModelList,
    Named,
    Register,
    Report,
    RouterReport,
    ServiceName,
    Snapshot,
    Stale,
    WorkerReport,
)
from livescale.shared.messages.message import Ack
from livescale.shared.messages.parameters import Manifest, ModelSpec
from livescale.shared.process import World
from livescale.shared.subjects import (
    CHECK_MODEL,
    HEARTBEAT,
    JOIN,
    KEEP,
    LEASE,
    LEAVE,
    MANIFEST,
    MODELS,
    REGISTER,
    REMOVE,
    SNAPSHOT,
    STALE,
)
from livescale.shared.topology import Topology

TICK_SECONDS = 0.1
EPOCHS_RESERVED, EPOCHS_LEFT = 1000, 500

# What is done about a death, for those who read the log.
THEN: Mapping[ServiceName, str] = {
    "gateway": "its requests end; clients ask another, or once it is back",
    "router": "the next in line takes office, or itself when it is started again",
    "registry": "it goes on from what it had saved",
    "planner": "running scales go on once it is back",
    "monitor": "nothing is scaled until it is back",
    "host": "copies that only it had are made elsewhere",
    "worker": "its requests go on at other workers, its transfers from other senders",
}

log = structlog.get_logger()


class Registry:
    """The only judge of who is alive."""

    def __init__(self, world: World, settings: RegistrySettings, topology: Topology | None = None) -> None:
        self._bus, self._clock = world.bus, world.clock
        self._topology = topology
        self._default_spec = default_spec(settings)
        self._info = world.info
        self._leases = Leases(LeaseTimes(settings.suspect_seconds, settings.dead_seconds), world.info.id)
        self._pool = Pool()
        self._witness = Witness(world.bus, world.clock, self._leases.members)
        self._saved = SavedState(world.bus.kv)
        self._membership = Membership(world.bus, world.clock, "registry", world.info.id, world.host)
        self._copies = Copies(world, self._pool, self._saved, self._leases.by_id, settings.suspect_seconds)
        self._seldom = SeldomLog(world.clock.now)
        self._before: dict[str, Member] = {}
        self._reconnected = asyncio.Event()
        self._metrics = RegistryMetrics(world.telemetry, self._leases, self._pool.holds)

    async def run(self) -> None:
        await self._keep_events()
        await self._restore()
        self._bus.watch_connection(self._connection_changed)
        heartbeats = await self._bus.subscribe(HEARTBEAT)
        leaves = await self._bus.subscribe(LEAVE)
        await self._bus.serve(self._info, self._endpoints())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hear(heartbeats), name="heartbeats")
            group.create_task(self._follow_leaves(leaves), name="leaves")
            group.create_task(self._witness.run(), name="incidents")
            group.create_task(self._judge(), name="leases")
            group.create_task(self._copies.run(), name="copies")
            group.create_task(self._saved.run(), name="saved")
            group.create_task(self._keep_events_again(), name="events")
            group.create_task(self._membership.run(), name="membership")

    def _endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(JOIN, self._join),
            Endpoint(SNAPSHOT, self._snapshot),
            Endpoint(MODELS, self._models),
            self._witness.endpoint,
            Endpoint(REGISTER, self._register, limit=16),
            Endpoint(REMOVE, self._remove),
            Endpoint(KEEP, self._keep),
            Endpoint(MANIFEST, self._manifest),
        ]

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

    async def _restore(self) -> None:
        models, members = await self._saved.load()
        for saved in models:
            self._pool.restore(*saved)
        # Its own lease died with the registry before this one.
        self._before = {one.id: one for one in members if one.service == "registry"}
        others = (one for one in members if one.service != "registry")
        self._leases.restore(others, self._clock.now(), self._saved.epochs)
        self._reserve_epochs()

    def _reserve_epochs(self) -> None:
        if self._saved.epochs - self._leases.last_epoch < EPOCHS_LEFT:
            self._saved.reserve_epochs(self._leases.last_epoch + EPOCHS_RESERVED)

    def _connection_changed(self, connected: bool) -> None:
        if connected:
            self._leases.thaw(self._clock.now())
            self._pool.doubt_readers()
            self._saved.save_again()
            self._reconnected.set()
        else:
            self._leases.freeze()

    async def _join(self, join: Join, context: Context) -> Joined:
        check_place(join, self._leases.members(), self._topology)
        check_kernels(join, self._leases.members())
        before = self._leases.by_id().get(join.id) or self._before.pop(join.id, None)
        member, moves = self._leases.join(join, self._clock.now())
        self._witness.joined(join, before)
        self._pool.gone(join.id)
        for move in moves:
            self._announce(move)
        self._saved.put_member(member)
        self._reserve_epochs()
        return Joined(epoch=member.epoch)

    async def _snapshot(self, ask: AskSnapshot, context: Context) -> Snapshot:
        return Snapshot(
            members=self._leases.members(),
            workers=self._pool.holds.workers(),
            hosts=self._pool.holds.hosts(),
            models=self._pool.entries(),
        )

    async def _models(self, ask: AskModels, context: Context) -> ModelList:
        return ModelList(models=self._pool.entries())

    async def _manifest(self, named: Named, context: Context) -> Manifest:
        return self._pool.manifest(named.model)

    async def _register(self, register: Register, context: Context) -> ModelEntry:
        """A model is there once a host has found its checkpoint well-formed, and hosts have room for it."""
        known = self._pool.declared(register.spec.name)
        spec = complete_spec(register.spec, register.named, known or self._default_spec)
        check_spec(spec)
        try:
            host = self._pool.host_to_check(spec.name)
        except Refusal:
            if not self._pool.rescale(spec):
                raise
        else:
            checked = await self._check(host, spec, self._seconds_left(context))
            self._pool.register(spec, checked, int(self._clock.wall()), self._clock.now())
        self._copies.save(spec.name)
        self._copies.look()
        entry = self._pool.entry(spec.name)
        log.info("model_registered", model=spec.name, size_bytes=entry.size_bytes, blocks=entry.blocks)
        return entry

    def _seconds_left(self, context: Context) -> float:
        return READ_TIMEOUT_SECONDS if context.deadline is None else context.deadline - self._clock.wall()

    async def _check(self, host: str, spec: ModelSpec, timeout: float) -> ModelChecked:
        try:
            return await self._bus.call(CHECK_MODEL, CheckModel(spec=spec), timeout=timeout, id=host)
        except Refusal:
            raise
        except BusError as error:
            raise Refusal(503, "the host did not answer", retry_after_ms=1000) from error

    async def _remove(self, named: Named, context: Context) -> ModelEntry:
        """Answered at once; its instances drain."""
        entry = self._pool.remove(named.model, self._clock.now())
        log.info("model_being_removed", model=named.model)
        self._copies.save(named.model)
        self._copies.look()
        return entry

    async def _keep(self, named: Named, context: Context) -> Ack:
        """Its last instance may be given back once this is answered without a refusal."""
        missing = self._pool.keep(named.model, self._clock.now())
        if missing is not None:
            self._copies.look()
            raise Refusal(503, missing, retry_after_ms=500)
        return Ack()

    async def _hear(self, heartbeats: Subscription[Report]) -> None:
        async for received in heartbeats:
            report = received.message
            effects = self._leases.beat(report.service, report.id, report.epoch, self._clock.now())
            for effect in effects:
                self._announce(effect)
            if not any(isinstance(effect, SpokeStale | SpokeFalse) for effect in effects):
                self._take(report)

    def _take(self, report: Report) -> None:
        match report:
            case WorkerReport():
                self._pool.on_worker(report)
            case HostReport():
                self._pool.on_host(report)
            case Beat() | RouterReport():
                pass

    async def _follow_leaves(self, leaves: Subscription[Leave]) -> None:
        async for received in leaves:
            last = received.message
            for move in self._leases.leave(last.service, last.id, last.epoch):
                self._announce(move)

    async def _judge(self) -> None:
        while True:
            for move in self._leases.tick(self._clock.now()):
                self._announce(move)
            await asyncio.sleep(TICK_SECONDS)

    def _announce(self, effect: LeaseMoved | SpokeStale | SpokeFalse) -> None:
        if isinstance(effect, SpokeFalse):
            self._seldom.warning("false_heartbeat", effect.id, epoch=effect.epoch, reason=effect.reason)
            return
        if isinstance(effect, SpokeStale):
            # Whoever slept has said it many times before it hears this.
            self._seldom.warning("stale_epoch", effect.id, member=effect.id, epoch=effect.epoch)
            self._bus.publish(STALE, Stale(id=effect.id, epoch=effect.epoch), id=effect.id)
            return
        if effect.state == "dead":
            self._witness.died(effect.id, effect.reason)
            self._pool.gone(effect.id)
            self._copies.look()
            self._saved.delete_member(effect.id)
        self._metrics.lease_moved(effect.state)
        tell = log.warning if effect.state == "dead" and effect.reason != LEFT else log.info
        then = {"then": THEN[effect.service]} if effect.state == "dead" else {}
        tell("lease_changed", member=effect.id, epoch=effect.epoch, state=effect.state, reason=effect.reason, **then)
        change = LeaseChanged(
            service=effect.service,
            id=effect.id,
            epoch=effect.epoch,
            state=effect.state,
            reason=effect.reason,
            at=self._clock.wall(),
        )
        self._bus.publish(LEASE, change, id=effect.id)


def default_spec(settings: RegistrySettings) -> ModelSpec:
    """What is not said of a model that is new."""
    return ModelSpec(
        name="",
        path="",
        dtype=settings.dtype,
        layout=settings.layout,
        min_instances=settings.min_instances,
        max_instances=settings.max_instances,
        max_model_len=settings.max_model_len,
        tensor_parallel_size=settings.tensor_parallel_size,
    )
