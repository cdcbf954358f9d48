"""Brings copies of models over the link: a host is commanded to receive each from a process that holds the model."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping

import structlog

from livescale.services.registry.fetches import CopyFetch, CopyTickets
from livescale.services.registry.pool import Pool
from livescale.shared.bus.contract import BusError, CallTimeout, Context, Subscription
from livescale.shared.messages.membership import Member
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import FetchModel
from livescale.shared.messages.transfers import Transfer
from livescale.shared.process.run import World
from livescale.shared.subjects import FETCH_MODEL, SEND

COMMAND_SECONDS = 5.0

log = structlog.get_logger()


class CopyFetcher:
    """The transfers of copies that are under way. `members` returns all members by id; transfers go on in tasks of
    `calls`."""

    def __init__(
        self, world: World, pool: Pool, members: Callable[[], Mapping[str, Member]], calls: asyncio.TaskGroup
    ) -> None:
        self._bus, self._ids = world.bus, world.ids
        self._pool = pool
        self._members = members
        self._calls = calls
        self._fetches: dict[str, CopyFetch] = {}  # by plan
        self._tickets = CopyTickets(world.clock.wall())

    def begin(self, spec: ModelSpec, manifest: Manifest, host: Member) -> tuple[str, Coroutine[None, None, None]]:
        """Return the id of a new transfer, and what commands it, which raises BusError."""
        fetch = CopyFetch(self._ids.new("copy"), spec, manifest, host, self._ids.secret())
        self._fetches[fetch.plan_id] = fetch
        return fetch.plan_id, self._fetch(fetch)

    def forget(self, plan_id: str) -> None:
        """Forget a transfer that was not commanded, if it is known."""
        self._fetches.pop(plan_id, None)

    def forget_over(self, members: Mapping[str, Member]) -> None:
        """Forget the transfers to hosts that have died or joined again."""
        for fetch in [one for one in self._fetches.values() if one.is_over(members)]:
            del self._fetches[fetch.plan_id]

    def end(self, host: str, model: str) -> bool:
        """Forget the transfer of this model to this host. Returns whether there was one."""
        over = [plan for plan, one in self._fetches.items() if (one.host.id, one.spec.name) == (host, model)]
        for plan in over:
            del self._fetches[plan]
        return bool(over)

    async def follow(self, transfers: Subscription[Transfer]) -> None:
        """Go on with transfers whose senders break off, for ever."""
        async for received in transfers:
            event = received.message
            fetch = self._fetches.get(event.plan_id)
            if fetch is not None and (event.state, event.ticket) == ("broken", fetch.ticket) and fetch.lose():
                self._calls.create_task(self._go_on(fetch), name=f"continue {fetch.spec.name}")

    async def _fetch(self, fetch: CopyFetch) -> None:
        """Command the transfer from the first holder that sends it, and from the host's disk where none does.

        The host itself tells of what does not arrive.
        """
        host = fetch.host.id
        fetch.is_asking = True
        try:
            while True:
                source = self._next_source(fetch)
                # The receiver first: it asks the sender for what it lacks.
                ask = fetch.ask(source, self._tickets.next())
                await self._ask(fetch, ask)
                if source is None or await self._sends(fetch, source):
                    log.info("copy_fetched", model=fetch.spec.name, host=host, source=source.id if source else "disk")
                    return
        finally:
            fetch.is_asking = False

    async def _ask(self, fetch: CopyFetch, ask: FetchModel) -> None:
        """Command the host, once more where it does not answer: one whose answer is lost waits for a sender."""
        host, context = fetch.host.id, Context(epoch=fetch.host.epoch)
        try:
            await self._bus.call(FETCH_MODEL, ask, timeout=COMMAND_SECONDS, context=context, id=host)
        except CallTimeout:
            if fetch.is_over(self._members()):
                raise
            await self._bus.call(FETCH_MODEL, ask, timeout=COMMAND_SECONDS, context=context, id=host)

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
