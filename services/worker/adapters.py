"""The adapters of the model that a worker serves: fetched from hosts when a request needs one, and evicted.

A request whose adapter is not here waits for it, and the others go on; so it does while a stage of the pipeline that is
led here has none. A step that comes upon rows of one that was evicted meanwhile waits for it itself.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

import structlog

from livescale.services.worker.engine.contract import AdapterData, AdapterMissing, AdapterUnavailable
from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.instance.serving import ServingLoop
from livescale.services.worker.pipeline.adapters import StageAdapters
from livescale.services.worker.scheduling.batch import Withheld
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.scheduling.sequence import Sequence
from livescale.services.worker.tensor_parallel.group import TensorParallelGroup
from livescale.services.worker.tensor_parallel.leader import GroupLeader
from livescale.shared.bus.contract import BusError, Refusal
from livescale.shared.links.contract import Link
from livescale.shared.messages.membership import Member
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import AskSnapshot, ModelEntry, Named, Snapshot
from livescale.shared.messages.requests import Submit
from livescale.shared.messages.transfers import FromDisk, Inflow, Node, Outflow, Send
from livescale.shared.model.adapter_shards import adapter_bytes
from livescale.shared.subjects import MANIFEST, SEND, SNAPSHOT
from livescale.shared.transfer.chunks import TICKETS, chunk_bytes_for
from livescale.shared.transfer.flow_end import ModelCopy, TransferFailed, together
from livescale.shared.transfer.receiver import BlockReceiver, Events
from livescale.shared.transfer.timeouts import Timeouts

ASK_SECONDS = 2.0
SEND_SECONDS = 5.0
RETRY_SECONDS = 0.2
WAIT_SECONDS = 30.0  # that a request waits for its adapter at most
UNAVAILABLE = 503
LOOK_SECONDS = 0.05  # how often it is looked whether an adapter may go
CHUNK_BYTES = chunk_bytes_for(0.0)
TIMEOUTS = Timeouts(first=5.0)  # so that one host that says nothing any more leaves time to ask others
FIRST_TICKET = TICKETS // 2  # planners count theirs from the time of day

K = TypeVar("K")
V = TypeVar("V")

log = structlog.get_logger()


class AdapterStore:
    """Brings adapters to the engine, at most `limit_bytes` of them. Those that are used least recently go first, and
    none that a request here uses. They come over `link`."""

    def __init__(
        self,
        context: WorkerContext,
        serving: ServingLoop,
        group: TensorParallelGroup,
        stages: StageAdapters,
        link: Link,
        hashing: Executor,
        limit_bytes: int,
    ) -> None:
        self._context = context
        self._serving = serving
        self._group = group
        self._stages = stages
        self._link = link
        self._hashing = hashing
        self._limit_bytes = limit_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()  # of those in the engine, the least recently used first
        self._bringing: dict[tuple[str, str], asyncio.Task[None]] = {}  # by instance of several ranks, and version
        self._coming: dict[str, asyncio.Task[AdapterData]] = {}
        self._room = asyncio.Lock()
        self._asked = self._flows = 0
        context.runner.fetch_adapter = self.fetch
        group.bring_adapters = self.bring_to_ranks
        stages.bring_here, stages.use_here = self.bring, self._use
        self._also, serving.on_request = serving.on_request, self._came

    def _came(self, scheduler: Scheduler, request: Submit) -> None:
        self._also(scheduler, request)
        self.hold(scheduler, request)

    def hold(self, scheduler: Scheduler, request: Submit) -> None:
        """Run no step for a request until its adapter is here."""
        sequence = scheduler.get(request.request_id)
        if sequence is None or request.adapter is None:
            return
        version = request.adapter.version
        if version in self._context.runner.adapters and not self._stages.leads:
            self._use(version)
            return
        sequence.awaits_adapter = True
        self._context.start(self._await(scheduler, sequence, version), f"adapter of {request.request_id}")

    async def bring(self, version: str) -> None:
        """Return once an adapter is in the engine, on all ranks. Raises AdapterUnavailable."""
        if version in self._context.runner.adapters:
            self._use(version)
            return
        leader = self._group.leader
        bring = partial(self._bring, leader, version)
        await asyncio.shield(_one_task(self._bringing, (leader.instance, version), bring))

    async def bring_to_ranks(self, versions: AbstractSet[str]) -> None:
        """Have adapters on all ranks before they run a step that was not held for these. Raises AdapterMissing."""
        leader = self._group.leader
        for version in sorted(versions - self._context.runner.adapters.keys()):
            try:
                await self._context.runner.add_adapter(await self._to_all(leader, version))
            except (AdapterUnavailable, ValueError) as error:
                raise AdapterMissing(f"adapter {version} did not come: {error}") from error

    async def fetch(self, version: str) -> AdapterData:
        """Receive an adapter from a node that has it, once for all that ask for it. Raises AdapterUnavailable."""
        return await asyncio.shield(_one_task(self._coming, version, partial(self._fetch, version)))

    async def _fetch(self, version: str) -> AdapterData:
        failure = "nobody has it"
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    try:
                        return await self._fetch_from(await self._source(version), version)
                    except (BusError, TransferFailed) as error:
                        failure = str(error)
                        log.warning("adapter_not_fetched", version=version, error=failure)
                        await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            raise AdapterUnavailable(f"adapter {version} did not come within {WAIT_SECONDS:g} s: {failure}") from None

    async def _await(self, scheduler: Scheduler, sequence: Sequence, version: str) -> None:
        try:
            await together(self.bring(version), self._stages.bring(version))
        except AdapterUnavailable as error:
            self._serving.give_up(scheduler, sequence, Withheld(str(error), UNAVAILABLE))
        sequence.awaits_adapter = False
        self._serving.wake()

    async def _bring(self, leader: GroupLeader, version: str) -> None:
        """Bring an adapter to all ranks, to this one last: what is here is everywhere."""
        begun = self._context.clock.now()
        try:
            data = await self._to_all(leader, version)
            async with self._room:
                size_bytes = adapter_bytes(data.manifest, leader.size)
                await self._make_room(leader, size_bytes)
                await self._context.runner.add_adapter(data)
                self._sizes[version] = size_bytes
        except (ValueError, RuntimeError) as error:
            leader.forget(version)
            raise AdapterUnavailable(str(error)) from error
        except AdapterUnavailable:
            leader.forget(version)
            raise
        log.info("adapter_here", version=version, seconds=self._context.clock.now() - begun)

    async def _to_all(self, leader: GroupLeader, version: str) -> AdapterData:
        """Receive an adapter here while the other ranks do so. Raises AdapterUnavailable."""
        data, _ = await asyncio.gather(self.fetch(version), self._to_others(leader, version))
        return data

    async def _to_others(self, leader: GroupLeader, version: str) -> None:
        """Return once the other ranks have an adapter. One that does not answer may be dead, of which this worker is
        told. Raises AdapterUnavailable."""
        failure = ""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while self._group.leader is leader:
                    try:
                        return await leader.bring(version)
                    except BusError as error:
                        if isinstance(error, Refusal) and error.code == UNAVAILABLE:
                            raise AdapterUnavailable(f"another rank: {error.message}") from error
                        failure = str(error)
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            raise AdapterUnavailable(f"another rank did not say that it has adapter {version}: {failure}") from None
        raise AdapterUnavailable("the ranks are no instance any more")

    async def _make_room(self, leader: GroupLeader, size_bytes: int) -> None:
        """Evict adapters until one of this size fits. Raises AdapterUnavailable."""
        if size_bytes > self._limit_bytes:
            raise AdapterUnavailable(f"the adapter takes {size_bytes} bytes; raise --adapter-bytes of workers")
        here = self._context.runner.adapters
        for gone in [version for version in self._sizes if version not in here]:
            del self._sizes[gone]  # with the model that it was for
        for version in here.keys() - self._sizes.keys():  # which steps fetched themselves
            self._sizes[version] = here[version]
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while sum(self._sizes.values()) + size_bytes > self._limit_bytes:
                    used = self._used()
                    idle = next((version for version in self._sizes if version not in used), None)
                    if idle is None:
                        await asyncio.sleep(LOOK_SECONDS)
                    else:
                        del self._sizes[idle]
                        leader.forget(idle)
                        await self._context.runner.remove_adapter(idle)
                        log.info("adapter_evicted", version=idle)
        except TimeoutError:
            raise AdapterUnavailable(
                f"requests use {sum(self._sizes.values())} bytes of adapters; raise --adapter-bytes of workers"
            ) from None

    def _used(self) -> set[str]:
        scheduler = self._serving.scheduler
        return set() if scheduler is None else {one.adapter for one in scheduler.in_order if one.adapter is not None}

    def _use(self, version: str) -> None:
        if version in self._sizes:
            self._sizes.move_to_end(version)

    async def _source(self, version: str) -> tuple[ModelEntry, Member]:
        """The adapter as it is registered, and a host that has it, or can read it. Raises BusError."""
        snapshot: Snapshot = await self._context.bus.call(SNAPSHOT, AskSnapshot(), timeout=ASK_SECONDS)
        entry = next((one for one in snapshot.models if one.version == version), None)
        if entry is None:
            raise BusError(f"adapter {version} is not registered any more")
        hosts = {one.id: one for one in snapshot.members if one.service == "host" and one.lease == "alive"}
        having = [hosts[id] for id in entry.copies if id in hosts] or list(hosts.values())
        if not having:
            raise BusError("no host is alive")
        self._asked += 1
        return entry, having[self._asked % len(having)]

    async def _fetch_from(self, source: tuple[ModelEntry, Member], version: str) -> AdapterData:
        entry, host = source
        manifest: Manifest = await self._context.bus.call(MANIFEST, Named(model=entry.spec.name), timeout=ASK_SECONDS)
        if manifest.version != version:
            raise BusError(f"adapter {entry.spec.name} has another version now, {manifest.version}")
        memory = memoryview(bytearray(manifest.size_bytes))
        self._flows += 1  # each has a ticket of its own, also where several are asked for at once
        secret, ticket = self._context.world.ids.secret(), FIRST_TICKET + self._flows % FIRST_TICKET
        failures: list[TransferFailed] = []
        upstream = Node(id=host.id, place="host", address=host.address or b"")
        copy = ModelCopy(self._context.me, CHUNK_BYTES, [memory], TIMEOUTS)
        async with asyncio.TaskGroup() as tasks:

            def broken(ticket: int, failure: TransferFailed) -> None:
                failures.append(failure)
                running.cancel()

            events = Events(lambda: None, lambda block: None, broken)
            incoming = BlockReceiver(self._link, copy, manifest.blocks, self._hashing, events, tasks)
            running = tasks.create_task(incoming.run())
            incoming.follow([Inflow(ticket=ticket, upstream=upstream)], secret)
            try:
                await self._order(entry, host, manifest, ticket, secret)
            except BusError as error:
                failures.append(TransferFailed(self._context.me, host.id, str(error)))
                running.cancel()
        if failures:
            raise failures[0]
        return AdapterData(manifest, memory)

    async def _order(self, entry: ModelEntry, host: Member, manifest: Manifest, ticket: int, secret: bytes) -> None:
        """Have the host send. Raises BusError."""
        downstream = Node(id=self._context.me, place="worker", address=self._link.address)
        send = Send(
            plan_id=f"adapter-{self._context.me}-{ticket}",
            version=manifest.version,
            outflows=[Outflow(ticket=ticket, downstream=downstream)],
            chunk_bytes=CHUNK_BYTES,
            epoch=host.epoch,
            secret=secret,
            from_disk=FromDisk(spec=entry.spec, manifest=manifest),
        )
        await self._context.bus.call(SEND, send, timeout=SEND_SECONDS, id=host.id)


def _one_task(tasks: dict[K, asyncio.Task[V]], key: K, make: Callable[[], Coroutine[Any, Any, V]]) -> asyncio.Task[V]:
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
