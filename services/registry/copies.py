"""Makes hosts hold the copies of models that the pool orders.

A new copy comes over the link from a process that holds the model, and from disk where there is none.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping

import structlog

from livescale.services.registry.copy_fetcher import CopyFetcher
from livescale.services.registry.model import Content
from livescale.services.registry.placement import FreeCopy, MakeCopy
from livescale.services.registry.pool import Pool
from livescale.services.registry.saved import SavedState
from livescale.shared.bus.contract import BusError, Received, Refusal, Subscription
from livescale.shared.messages.membership import Member
from livescale.shared.messages.registry import ModelRead, ReadModel, ReleaseModel
from livescale.shared.policy.backoff import Backoff
from livescale.shared.process.run import World
from livescale.shared.subjects import MODEL_READ, READ_MODEL, RELEASE_MODEL, TRANSFER

LOOK_SECONDS = 1.0
AGAIN_SECONDS, LONGEST_AGAIN_SECONDS = 1.0, 60.0
REFUSED = 409  # by a host that has no room, or is at work on something else
READ_TIMEOUT_SECONDS = 60.0  # a checkpoint on a hub is fetched before the host answers
RELEASE_SECONDS = 5.0

log = structlog.get_logger()


class CopyReconciler:
    """Compares what hosts hold with what the pool orders, and commands the difference, again and again.

    `members` returns all members by id. `settle` is how many seconds it waits after a restart of the registry.
    """

    def __init__(
        self, world: World, pool: Pool, saved: SavedState, members: Callable[[], Mapping[str, Member]], settle: float
    ) -> None:
        self._bus, self._clock = world.bus, world.clock
        self._pool = pool
        self._saved = saved
        self._members = members
        self._settle_seconds = settle
        self._calls = asyncio.TaskGroup()
        self._news = asyncio.Event()
        self._missing: list[str] = []
        self._releasing: set[FreeCopy] = set()
        self._tried = Backoff(AGAIN_SECONDS, LONGEST_AGAIN_SECONDS)
        self._fetcher = CopyFetcher(world, pool, members, self._calls)
        self._unanswered: dict[tuple[str, str, str], MakeCopy] = {}  # the last by host, model and version
        self._without_copy = world.telemetry.gauge(
            "livescale_registry_models_without_copy", "Models without a whole copy in the memory of any process"
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
        self._saved.put_model(pool.entry(name), pool.registered(name).manifest, pool.next_entry(name))

    async def run(self) -> None:
        reads = await self._bus.subscribe(MODEL_READ)
        transfers = await self._bus.subscribe(TRANSFER)
        async with self._calls as group:
            group.create_task(self._follow_reads(reads), name="reads")
            group.create_task(self._fetcher.follow(transfers), name="transfers")
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
        self._fetcher.forget_over(members)
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
        content, manifest = self._pool.make(order)
        host = self._members().get(order.host)
        log.info("copy_ordered", model=order.model, host=order.host, reason=order.reason)
        plan_id = ""
        if manifest is None or host is None or not self._pool.sources(order):
            work = self._read(order.host, ReadModel(spec=content.spec))
        else:
            plan_id, work = self._fetcher.begin(content.spec, manifest, host)
        self._calls.create_task(self._try(order, content, work, plan_id), name=f"copy {order.model}")

    async def _try(self, order: MakeCopy, content: Content, work: Coroutine[None, None, None], plan_id: str) -> None:
        key = order.host, order.model, order.version
        self._unanswered[key] = order
        try:
            await work
            content.begin(order.host)
        except BusError as error:
            self._fetcher.forget(plan_id)
            if isinstance(error, Refusal) and error.code == REFUSED:
                self._learn(order, content)
            # A host that was asked again meanwhile may be at work, although the first call failed.
            is_last = self._unanswered.get(key) is order
            if is_last and self._pool.not_made(order):
                self._failed(order.model, order.host, str(error))
        finally:
            if self._unanswered.get(key) is order:
                del self._unanswered[key]

    def _learn(self, order: MakeCopy, content: Content) -> None:
        """A host that refuses to get a content has none of it: what it has of the model is another one."""
        hosts = [host for host in self._pool.holds.memories() if host.id == order.host]
        copies = [copy for host in hosts for copy in host.copies if copy.model == order.model]
        if all(copy.whole for copy in copies):  # else one may turn out to be it
            content.other_than |= {copy.version for copy in copies}

    async def _read(self, host: str, command: ReadModel) -> None:
        await self._bus.call(READ_MODEL, command, timeout=READ_TIMEOUT_SECONDS, id=host)

    async def _release(self, order: FreeCopy) -> None:
        release = ReleaseModel(model=order.model, version=order.version)
        try:
            await self._bus.call(RELEASE_MODEL, release, timeout=RELEASE_SECONDS, id=order.host)
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
        fetched = self._fetcher.end(event.host, event.model)
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
