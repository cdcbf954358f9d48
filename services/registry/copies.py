"""Makes hosts hold the copies of models that the pool orders.

A new copy comes over the link from a process that holds the model, and from disk where there is none.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping

import structlog

from livescale.services.registry.fetches import CopyFetch, CopyTickets
from livescale.services.registry.placement import FreeCopy, MakeCopy
from livescale.services.registry.pool import Pool
from livescale.services.registry.saved import SavedState
from livescale.shared.bus.contract import BusError, Context, Received, Subscription
from livescale.shared.messages.membership import Member
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelRead, ReadModel, ReleaseModel
from livescale.shared.messages.transfers import Transfer
from livescale.shared.policy.backoff import Backoff
from livescale.shared.process.run import World
from livescale.shared.subjects import FETCH_MODEL, MODEL_READ, READ_MODEL, RELEASE_MODEL, SEND, TRANSFER

LOOK_SECONDS = 1.0
AGAIN_SECONDS, LONGEST_AGAIN_SECONDS = 1.0, 60.0
READ_TIMEOUT_SECONDS = 60.0  # a checkpoint on a hub is fetched before the host answers
COMMAND_SECONDS = 5.0

log = structlog.get_logger()


class CopyReconciler:
    """Compares what hosts hold with what the pool orders, and commands the difference, again and again.

    `members` returns all members by id. `settle` is how many seconds it waits after a restart of the registry.
    """

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
        self._fetches: dict[str, CopyFetch] = {}  # by plan
        self._unanswered: dict[tuple[str, str, str], MakeCopy] = {}  # the last by host, model and version
        self._tickets = CopyTickets(world.clock.wall())
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
        """Compare at once: something has changed that orders may follow from."""
        self._news.set()

    def save(self, name: str) -> None:
        """Write what a later registry has to know of this model."""
        pool = self._pool
        self._saved.put_model(pool.entry(name), pool.known_manifest(name), pool.next_entry(name))

    async def run(self) -> None:
        reads = await self._bus.subscribe(MODEL_READ)
        transfers = await self._bus.subscribe(TRANSFER)
        async with self._calls as group:
            group.create_task(self._follow_reads(reads), name="reads")
            group.create_task(self._follow_transfers(transfers), name="transfers")
            if self._pool.names():
                # After a restart hosts and workers first get the time to report what they hold.
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
        now, members = self._clock.now(), self._members()
        for fetch in [one for one in self._fetches.values() if one.is_over(members)]:
            del self._fetches[fetch.plan_id]
        for name in self._pool.forget_removed(now):
            log.info("model_removed", model=name)
            self._saved.delete_model(name)
        self._name_missing(self._pool.without_copy())
        self._pool.caches.look(self._pool.holds, members.values(), now)
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
        host = self._members().get(order.host)
        log.info("copy_ordered", model=order.model, host=order.host, reason=order.reason)
        plan_id = ""
        if manifest is None or host is None or not self._pool.sources(order):
            work = self._read(order.host, spec)
        else:
            fetch = CopyFetch(self._ids.new("copy"), spec, manifest, host, self._ids.secret())
            plan_id = fetch.plan_id
            self._fetches[plan_id] = fetch
            work = self._fetch(fetch)
        self._calls.create_task(self._try(order, work, plan_id), name=f"copy {order.model}")

    async def _try(self, order: MakeCopy, work: Coroutine[None, None, None], plan_id: str) -> None:
        key = order.host, order.model, order.version
        self._unanswered[key] = order
        try:
            await work
        except BusError as error:
            self._fetches.pop(plan_id, None)
            # A host that was asked again meanwhile may be at work, although the first call failed.
            is_last = self._unanswered.get(key) is order
            if is_last and self._pool.not_made(order):
                self._failed(order.model, order.host, str(error))
        finally:
            if self._unanswered.get(key) is order:
                del self._unanswered[key]

    async def _read(self, host: str, spec: ModelSpec) -> None:
        await self._bus.call(READ_MODEL, ReadModel(spec=spec), timeout=READ_TIMEOUT_SECONDS, id=host)

    async def _fetch(self, fetch: CopyFetch) -> None:
        """Command the transfer from the first holder that sends it, and from the host's disk where none does.

        The host itself tells of what does not arrive.
        """
        host, to_host = fetch.host.id, Context(epoch=fetch.host.epoch)
        fetch.is_asking = True
        try:
            while True:
                source = self._next_source(fetch)
                # The receiver first: it asks the sender for what it lacks.
                ask = fetch.ask(source, self._tickets.next())
                await self._bus.call(FETCH_MODEL, ask, timeout=COMMAND_SECONDS, context=to_host, id=host)
                if source is None or await self._sends(fetch, source):
                    log.info("copy_fetched", model=fetch.spec.name, host=host, source=source.id if source else "disk")
                    return
        finally:
            fetch.is_asking = False

    def _next_source(self, fetch: CopyFetch) -> Member | None:
        members = self._members()
        for id in self._pool.holders(fetch.manifest.version):
            if id in members and members[id].lease == "alive" and id not in fetch.lost:
                return members[id]
        return None

    async def _sends(self, fetch: CopyFetch, source: Member) -> bool:
        """Command `source` to send. False where it refuses, does not answer, or was lost meanwhile."""
        send, context = fetch.send(source), Context(epoch=source.epoch)
        try:
            await self._bus.call(SEND, send, timeout=COMMAND_SECONDS, context=context, id=source.id)
        except BusError as error:
            log.warning("copy_not_sent", model=fetch.spec.name, source=source.id, error=str(error))
            fetch.lose()
        return source.id not in fetch.lost

    async def _go_on(self, fetch: CopyFetch) -> None:
        try:
            await self._fetch(fetch)
        except BusError as error:  # the host goes on by itself, or is dead
            log.warning("copy_not_continued", model=fetch.spec.name, host=fetch.host.id, error=str(error))

    def _end_fetch(self, host: str, model: str) -> bool:
        """Forget the transfer of this model to this host. Returns whether there was one."""
        over = [plan for plan, one in self._fetches.items() if (one.host.id, one.spec.name) == (host, model)]
        for plan in over:
            del self._fetches[plan]
        return bool(over)

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

    async def _follow_transfers(self, transfers: Subscription[Transfer]) -> None:
        async for received in transfers:
            event = received.message
            fetch = self._fetches.get(event.plan_id)
            if fetch is not None and (event.state, event.ticket) == ("broken", fetch.ticket) and fetch.lose():
                self._calls.create_task(self._go_on(fetch), name=f"continue {fetch.spec.name}")

    def _heard(self, received: Received[ModelRead]) -> None:
        event = received.message
        fetched = self._end_fetch(event.host, event.model)
        before = self._pool.versions(event.model)
        self._pool.read(event)
        after = self._pool.versions(event.model)
        if event.error is not None:
            self._failed(event.model, event.host, event.error)
        else:
            self._tried.succeeded(event.model)
            log.info("model_read", model=event.model, host=event.host)
            self._made.labels("fetched" if fetched else "read").inc()
        if after != before:
            self.save(event.model)
        self.look()

    def _failed(self, model: str, host: str, error: str) -> None:
        self._made.labels("failed").inc()
        self._tried.failed(model, self._clock.now())
        log.error("model_not_read", model=model, host=host, error=error)
