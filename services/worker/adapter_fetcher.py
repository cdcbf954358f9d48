"""Adapters on their way to a worker: found at a host, ordered from it and received, each once for all that ask."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import structlog

from livescale.services.worker.engine.contract import AdapterData, AdapterUnavailable
from livescale.services.worker.instance.context import WorkerContext
from livescale.shared.bus.contract import BusError
from livescale.shared.links.contract import Link, View
from livescale.shared.messages.registry import AskAdapter, AskSnapshot, Snapshot
from livescale.shared.messages.transfers import FromDisk, Inflow, Node, Outflow, Send
from livescale.shared.subjects import ADAPTER, SEND, SNAPSHOT
from livescale.shared.transfer.chunks import TICKETS, chunk_bytes_for
from livescale.shared.transfer.flow_end import ModelCopy, Timeouts, TransferFailed
from livescale.shared.transfer.receiver import BlockReceiver, Events

ASK_SECONDS = 2.0
SEND_SECONDS = 5.0
RETRY_SECONDS = 0.2
WAIT_SECONDS = 30.0  # that a request waits for its adapter at most
CHUNK_BYTES = chunk_bytes_for(0.0)
TIMEOUTS = Timeouts(first=5.0)  # so that one host that says nothing any more leaves time to ask others
FIRST_TICKET = TICKETS // 2  # planners count theirs from the time of day

K = TypeVar("K")
V = TypeVar("V")

log = structlog.get_logger()


@dataclass(frozen=True)
class AdapterSource:
    """A host in its `epoch` that has an adapter in memory, or else reads it as `from_disk` says."""

    host: Node
    epoch: int
    from_disk: FromDisk


class AdapterFetcher:
    """Receives adapters from hosts over `link` into `new_memory`; `hashing` checks what has arrived."""

    def __init__(
        self, context: WorkerContext, link: Link, hashing: Executor, new_memory: Callable[[int], View]
    ) -> None:
        self._context = context
        self._link = link
        self._hashing = hashing
        self._new_memory = new_memory
        self._coming = OnceForAll[str, AdapterData](context)
        self._asked = self._flows = 0

    async def fetch(self, version: str) -> AdapterData:
        """Receive an adapter from a node that has it, once for all that ask for it. Raises AdapterUnavailable."""
        return await self._coming.get(version, partial(self._fetch, version))

    async def _fetch(self, version: str) -> AdapterData:
        failure = "nobody has it"
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    try:
                        return await self._fetch_from(await self._source(version))
                    except (BusError, TransferFailed) as error:
                        failure = str(error)
                        log.warning("adapter_not_fetched", version=version, error=failure)
                        await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            raise AdapterUnavailable(f"adapter {version} did not come within {WAIT_SECONDS:g} s: {failure}") from None

    async def _source(self, version: str) -> AdapterSource:
        """A host that has the adapter, or can read it. Raises BusError."""
        content = await self._context.bus.call(ADAPTER, AskAdapter(version=version), timeout=ASK_SECONDS)
        snapshot: Snapshot = await self._context.bus.call(SNAPSHOT, AskSnapshot(), timeout=ASK_SECONDS)
        hosts = {one.id: one for one in snapshot.members if one.service == "host" and one.lease == "alive"}
        copies = [(one, host.id) for host in snapshot.hosts for one in host.holdings if host.id in hosts]
        begun = [(copy, hosts[id]) for copy, id in copies if copy.version == version]
        whole = [host for copy, host in begun if copy.is_whole]
        having = whole or [host for _, host in begun] or list(hosts.values())
        if not having:
            raise BusError("no host is alive")
        self._asked += 1
        host = having[self._asked % len(having)]
        node = Node(id=host.id, place="host", address=host.address or b"")
        return AdapterSource(node, host.epoch, FromDisk(spec=content.spec, manifest=content.manifest))

    async def _fetch_from(self, source: AdapterSource) -> AdapterData:
        manifest = source.from_disk.manifest
        memory: list[Any] = [self._new_memory(manifest.size_bytes)]  # of either kind
        self._flows += 1  # each has a ticket of its own, also where several are asked for at once
        secret, ticket = self._context.world.ids.secret(), FIRST_TICKET + self._flows % FIRST_TICKET
        failures: list[TransferFailed] = []
        copy = ModelCopy(self._context.me, CHUNK_BYTES, memory, TIMEOUTS)
        async with asyncio.TaskGroup() as tasks:

            def broken(ticket: int, failure: TransferFailed) -> None:
                failures.append(failure)
                running.cancel()

            events = Events(lambda: None, lambda block: None, broken)
            incoming = BlockReceiver(self._link, copy, manifest.blocks, self._hashing, events, tasks)
            running = tasks.create_task(incoming.run())
            incoming.follow([Inflow(ticket=ticket, upstream=source.host)], secret)
            try:
                await self._order(source, ticket, secret)
            except BusError as error:
                failures.append(TransferFailed(self._context.me, source.host.id, str(error)))
                running.cancel()
        if failures:
            raise failures[0]
        return AdapterData(manifest, memory[0])

    async def _order(self, source: AdapterSource, ticket: int, secret: bytes) -> None:
        """Have the host send. Raises BusError."""
        downstream = Node(id=self._context.me, place="worker", address=self._link.address)
        send = Send(
            plan_id=f"adapter-{self._context.me}-{ticket}",
            version=source.from_disk.manifest.version,
            outflows=[Outflow(ticket=ticket, downstream=downstream)],
            chunk_bytes=CHUNK_BYTES,
            epoch=source.epoch,
            secret=secret,
            from_disk=source.from_disk,
        )
        await self._context.bus.call(SEND, send, timeout=SEND_SECONDS, id=source.host.id)


class OnceForAll(Generic[K, V]):
    """Does something for each key once for all that ask for it meanwhile. It ends with the worker."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._under_way: dict[K, asyncio.Future[V]] = {}

    @property
    def keys(self) -> list[K]:
        """What is under way."""
        return list(self._under_way)

    async def get(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        """What `make` returns, for the first that asks. Raises what it raises."""
        coming = self._under_way.get(key)
        if coming is None:
            coming = self._under_way[key] = asyncio.get_running_loop().create_future()
            if self._context.start(self._make(key, make, coming), "adapter") is None:
                coming.cancel()
        return await asyncio.shield(coming)

    async def _make(self, key: K, make: Callable[[], Awaitable[V]], coming: asyncio.Future[V]) -> None:
        try:
            coming.set_result(await make())
        except Exception as error:  # noqa: BLE001 whatever it is, those that wait get it
            coming.set_exception(error)
            coming.exception()  # there may be nobody who waits
        finally:
            del self._under_way[key]
            coming.cancel()  # unless it is done
