"""Adapters on their way to a worker: found at a host, ordered from it and received, each once for all that ask."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import structlog

from livescale.services.worker.engine.contract import AdapterData, AdapterUnavailable
from livescale.services.worker.instance.context import WorkerContext
from livescale.shared.bus.contract import BusError
from livescale.shared.links.contract import Link
from livescale.shared.messages.registry import AskSnapshot, Named, Snapshot
from livescale.shared.messages.transfers import FromDisk, Inflow, Node, Outflow, Send
from livescale.shared.subjects import MANIFEST, SEND, SNAPSHOT
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
    """Receives adapters from hosts over `link`; `hashing` checks what has arrived."""

    def __init__(self, context: WorkerContext, link: Link, hashing: Executor) -> None:
        self._context = context
        self._link = link
        self._hashing = hashing
        self._coming: dict[str, asyncio.Task[AdapterData]] = {}
        self._asked = self._flows = 0

    async def fetch(self, version: str) -> AdapterData:
        """Receive an adapter from a node that has it, once for all that ask for it. Raises AdapterUnavailable."""
        return await asyncio.shield(one_task(self._coming, version, partial(self._fetch, version)))

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
        snapshot: Snapshot = await self._context.bus.call(SNAPSHOT, AskSnapshot(), timeout=ASK_SECONDS)
        entry = next((one for one in snapshot.models if one.version == version), None)
        if entry is None:
            raise BusError(f"adapter {version} is not registered any more")
        hosts = {one.id: one for one in snapshot.members if one.service == "host" and one.lease == "alive"}
        having = [hosts[id] for id in entry.copies if id in hosts] or list(hosts.values())
        if not having:
            raise BusError("no host is alive")
        self._asked += 1
        host = having[self._asked % len(having)]
        manifest = await self._context.bus.call(MANIFEST, Named(model=entry.spec.name), timeout=ASK_SECONDS)
        if manifest.version != version:
            raise BusError(f"adapter {entry.spec.name} has another version now, {manifest.version}")
        node = Node(id=host.id, place="host", address=host.address or b"")
        return AdapterSource(node, host.epoch, FromDisk(spec=entry.spec, manifest=manifest))

    async def _fetch_from(self, source: AdapterSource) -> AdapterData:
        manifest = source.from_disk.manifest
        memory = memoryview(bytearray(manifest.size_bytes))
        self._flows += 1  # each has a ticket of its own, also where several are asked for at once
        secret, ticket = self._context.world.ids.secret(), FIRST_TICKET + self._flows % FIRST_TICKET
        failures: list[TransferFailed] = []
        copy = ModelCopy(self._context.me, CHUNK_BYTES, [memory], TIMEOUTS)
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
        return AdapterData(manifest, memory)

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


def one_task(tasks: dict[K, asyncio.Task[V]], key: K, make: Callable[[], Coroutine[Any, Any, V]]) -> asyncio.Task[V]:
    """The task that does `make` for all that wait for `key`; it is in `tasks` until it ends."""

    def end(done: asyncio.Task[V]) -> None:
        del tasks[key]
        if not done.cancelled():
            done.exception()  # those that waited were told

    task = tasks.get(key)
    if task is None:
        task = tasks[key] = asyncio.create_task(make(), name=f"adapter {key}")
        task.add_done_callback(end)
    return task
