"""Has hosts make and release copies of models, as the policy orders: from survivors over the link, else from disk."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping

import structlog

from services.registry.demands import FreeCopy, MakeCopy
from services.registry.pool import Pool
from services.registry.saved import SavedState
from shared.backoff import Backoff
from shared.bus.contract import BusError, Context, Received, Subscription
from shared.messages.copies import FetchModel, ModelRead, ReadModel, ReleaseModel
from shared.messages.membership import Member
from shared.messages.parameters import Manifest, ModelSpec
from shared.messages.transfers import Inflow, Node, Outflow, Send
from shared.process import World
from shared.subjects import FETCH_MODEL, MODEL_READ, READ_MODEL, RELEASE_MODEL, SEND
from shared.transfer.chunks import TICKET_BITS, chunk_bytes_for

LOOK_SECONDS = 1.0
AGAIN_SECONDS, LONGEST_AGAIN_SECONDS = 1.0, 60.0
READ_TIMEOUT_SECONDS = 60.0  # a checkpoint on a hub is fetched before the host answers
COMMAND_SECONDS = 5.0
TICKETS = 1 << TICKET_BITS

log = structlog.get_logger()


class Copies:
    """`run` carries out what the pool orders, at once when it is told to `look`. `members`: who is there, by id."""

    def __init__(
        self, world: World, pool: Pool, saved: SavedState, members: Callable[[], Mapping[str, Member]], settle: float
    ) -> None:
        self._bus, self._clock, self._ids = world.bus, world.clock, world.ids
        self._pool = pool
        self._saved = saved
        self._members = members
        self._settle_seconds = settle
        self._calls = asyncio.TaskGroup()
        self._news = asyncio.Event()
        self._missing: list[str] = []
        self._releasing: set[FreeCopy] = set()
        self._tried = Backoff(AGAIN_SECONDS, LONGEST_AGAIN_SECONDS)
        self._fetching: set[str] = set()  # models
        self._from_disk: set[str] = set()  # models that could not be fetched
        # Far from those that the planner begins with.
        self._ticket = (int(world.clock.wall()) + TICKETS // 2) % TICKETS
        self._without_copy = world.telemetry.gauge(
            "livescale_registry_models_without_copy", "Models of which no whole copy is in any memory"
        )
        self._made = world.telemetry.counter(
            "livescale_registry_copies_total",
            "Copies in host caches that were made, by where they came from, and those released",
            ["what"],
            [("fetched",), ("read",), ("released",), ("failed",)],
        )

    def look(self) -> None:
        """Something has changed."""
        self._news.set()

    def save(self, name: str) -> None:
        """What a successor has to know of this model."""
        pool = self._pool
        self._saved.put_model(pool.entry(name), pool.known_manifest(name), pool.next_entry(name))

    async def run(self) -> None:
        reads = await self._bus.subscribe(MODEL_READ)
        async with self._calls as group:
            group.create_task(self._follow_reads(reads), name="reads")
            if self._pool.names():
                # After a restart everyone first gets the time to say what he holds.
                await asyncio.sleep(self._settle_seconds)
            while True:
                self._order()
                await self._wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()

    def _order(self) -> None:
        now = self._clock.now()
        for name in self._pool.forget_removed(now):
            log.info("model_removed", model=name)
            self._saved.delete_model(name)
        self._name_missing(self._pool.without_copy())
        for order in self._pool.plan(now):
            match order:
                case MakeCopy() if self._tried.is_due(order.model, now):
                    self._make(order)
                case FreeCopy() if order not in self._releasing:
                    self._releasing.add(order)
                    self._calls.create_task(self._release(order), name=f"release {order.model}")

    def _name_missing(self, models: list[str]) -> None:
        self._without_copy.set(len(models))
        if models and models != self._missing:
            log.warning("models_without_copy", models=models)
        elif self._missing and not models:
            log.info("every_model_has_a_copy")
        self._missing = models

    def _make(self, order: MakeCopy) -> None:
        spec, manifest = self._pool.make(order)
        members = self._members()
        sources = [id for id in self._pool.sources(order) if id in members and members[id].lease == "alive"]
        if manifest is None or order.model in self._from_disk or order.host not in members:
            sources = []
        source = next(iter(sources), None)
        log.info("copy_ordered", model=order.model, host=order.host, source=source or "disk", reason=order.reason)
        if source is not None and manifest is not None:
            self._fetching.add(order.model)
            work = self._fetch(spec, manifest, members[order.host], members[source])
        else:
            work = self._read(order.host, spec)
        self._calls.create_task(self._try(order, work), name=f"copy {order.model}")

    async def _try(self, order: MakeCopy, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except BusError as error:
            self._pool.not_made(order)
            self._failed(order.model, order.host, str(error))

    async def _read(self, host: str, spec: ModelSpec) -> None:
        await self._bus.call(READ_MODEL, ReadModel(spec=spec), timeout=READ_TIMEOUT_SECONDS, id=host)

    async def _fetch(self, spec: ModelSpec, manifest: Manifest, host: Member, source: Member) -> None:
        """The receiver first: it asks the sender for what it lacks. What does not come is told by `ModelRead`."""
        plan, secret, chunk_bytes = self._ids.new("copy"), self._ids.secret(), chunk_bytes_for(0.0)
        self._ticket = (self._ticket + 1) % TICKETS
        inflow = Inflow(ticket=self._ticket, upstream=_node(source))
        outflow = Outflow(ticket=self._ticket, downstream=_node(host))
        fetch = FetchModel(
            plan_id=plan,
            spec=spec,
            manifest=manifest,
            inflows=[inflow],
            chunk_bytes=chunk_bytes,
            epoch=host.epoch,
            secret=secret,
        )
        send = Send(
            plan_id=plan,
            version=manifest.version,
            outflows=[outflow],
            chunk_bytes=chunk_bytes,
            epoch=source.epoch,
            secret=secret,
        )
        to_host, to_source = Context(epoch=host.epoch), Context(epoch=source.epoch)
        await self._bus.call(FETCH_MODEL, fetch, timeout=COMMAND_SECONDS, context=to_host, id=host.id)
        try:
            await self._bus.call(SEND, send, timeout=COMMAND_SECONDS, context=to_source, id=source.id)
        except BusError:
            release = ReleaseModel(model=spec.name, version=manifest.version)
            await self._bus.call(RELEASE_MODEL, release, timeout=COMMAND_SECONDS, id=host.id)
            raise

    async def _release(self, order: FreeCopy) -> None:
        release = ReleaseModel(model=order.model, version=order.version)
        try:
            await self._bus.call(RELEASE_MODEL, release, timeout=COMMAND_SECONDS, id=order.host)
        except BusError as error:
            log.warning("copy_not_released", model=order.model, host=order.host, error=str(error))
        else:
            log.info("copy_released", model=order.model, host=order.host, reason=order.reason)
            self._made.labels("released").inc()
            self._pool.holds.drop(order.host, order.model, order.version)
            self.look()
        finally:
            self._releasing.discard(order)

    async def _follow_reads(self, reads: Subscription[ModelRead]) -> None:
        async for received in reads:
            self._heard(received)

    def _heard(self, received: Received[ModelRead]) -> None:
        event = received.message
        before = self._pool.versions(event.model)
        self._pool.read(event)
        after = self._pool.versions(event.model)
        if event.error is not None:
            self._failed(event.model, event.host, event.error)
        else:
            self._tried.succeeded(event.model)
            self._from_disk.discard(event.model)
            log.info("model_read", model=event.model, host=event.host)
            self._made.labels("fetched" if event.model in self._fetching else "read").inc()
            self._fetching.discard(event.model)
        if after != before:
            self.save(event.model)
        self.look()

    def _failed(self, model: str, host: str, error: str) -> None:
        """What could not be fetched is read from disk next."""
        if model in self._fetching:
            self._fetching.discard(model)
            self._from_disk.add(model)
        self._made.labels("failed").inc()
        self._tried.failed(model, self._clock.now())
        log.error("model_not_read", model=model, host=host, error=error)


def _node(member: Member) -> Node:
    return Node(id=member.id, place="host" if member.service == "host" else "worker", address=member.address or b"")
