"""The host: it keeps models in its memory, read from disk or received over the link, and sends them from there."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from livescale.services.host.cache import CacheFull, Held, HostCache
from livescale.services.host.checkpoint_reader import CheckpointReader
from livescale.services.host.disk import Disk
from livescale.services.host.fetch import ModelFetch
from livescale.services.host.memory import Memory, MemoryCallbacks
from livescale.services.host.settings import HostSettings
from livescale.shared.bus.contract import Ack, Context, Endpoint, Refusal
from livescale.shared.links.contract import Link
from livescale.shared.links.meter import PathBytes
from livescale.shared.messages.registry import FetchModel, ModelRead, ReleaseModel
from livescale.shared.messages.transfers import Abort, Send
from livescale.shared.process.run import World
from livescale.shared.process.system_port import WhyNotReady, starting
from livescale.shared.subjects import (
    ABORT,
    CHECK_MODEL,
    FETCH_MODEL,
    MODEL_READ,
    READ_MODEL,
    RELEASE_MODEL,
    SEND,
)
from livescale.shared.transfer.flow_end import LostFlows, TransferFailed
from livescale.shared.transfer.memory_export import OpenMemoryExport, offer_of
from livescale.shared.transfer.sender import BlockSender

log = structlog.get_logger()


class HostService:
    """The host cache of one machine.

    A model whose version is known can be sent while it is still being read, any other once it is whole.
    """

    def __init__(
        self,
        world: World,
        settings: HostSettings,
        disk: Disk,
        open_link: Callable[[], Awaitable[Link]],
        open_export: OpenMemoryExport = lambda address: None,
    ) -> None:
        self._world = world
        self._bus = world.bus
        self._id = world.info.id
        self._place = settings.place
        self._disk = disk
        self._open_link = open_link
        self._open_export = open_export
        self._cache = HostCache(settings.cache_bytes)
        self._sending: dict[str, str] = {}  # versions, by plan
        self._lost = LostFlows(world.bus, world.clock)
        self._why_not_ready: WhyNotReady = starting
        self._moved = PathBytes(world.telemetry).moved
        self._cache_bytes = world.telemetry.gauge("livescale_host_cache_bytes", "Bytes the host cache takes")

    async def run(self) -> None:
        self._link = link = await self._open_link()
        memory_export = self._open_export(link.address)
        self._hashing = ThreadPoolExecutor(1, "hashing")
        told = MemoryCallbacks(self._changed, self._announce, self._tell_failure)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._membership = self._world.membership(
                    "host",
                    address=link.address,
                    report=lambda epoch: self._cache.report(
                        self._id, epoch, self._sent_versions(), flows_out=len(self._outgoing)
                    ),
                    on_stale=self._give_up,
                    place=self._place,
                )
                self._why_not_ready = self._membership.why_not_ready
                self._memory = Memory(self._cache, self._disk, self._world, told, tasks)
                self._checkpoints = CheckpointReader(self._disk, self._memory, self._announce)
                self._outgoing = BlockSender.of(self._world, link, tasks, self._membership.changed, memory_export)
                self._bus.watch_connection(self._connection_changed)
                await self._bus.serve(self._world.info, self._endpoints())
                tasks.create_task(self._membership.run(), name="membership")
                tasks.create_task(self._memory.keep_models(), name="keeping")
        finally:
            await self._disk.close()
            self._memory.close()
            await asyncio.to_thread(self._hashing.shutdown)
            if memory_export is not None:
                await memory_export.close()
            await link.close()

    async def why_not_ready(self) -> str | None:
        """Why it does not serve its role just now; None where it does."""
        return await self._why_not_ready()

    def _give_up(self) -> None:
        """Send nothing more, as the registry holds this process for dead."""
        self._outgoing.abort_all(f"{self._id} had been declared dead")

    def _endpoints(self) -> list[Endpoint]:
        me = {"id": self._id}
        return [
            Endpoint(CHECK_MODEL, self._checkpoints.check, me, limit=16),
            Endpoint(READ_MODEL, self._checkpoints.read, me, limit=16),
            Endpoint(FETCH_MODEL, self._fetch_model, me),
            Endpoint(RELEASE_MODEL, self._release_model, me),
            Endpoint(SEND, self._send, me),
            Endpoint(ABORT, self._abort, me),
        ]

    async def _fetch_model(self, command: FetchModel, context: Context) -> Ack:
        """Begin to receive a model, or go on along other flows. The answer says that a sender may begin.

        `Transfer` tells of a flow that is lost, `ModelRead` when the model is whole.
        """
        self._check_epoch(command.epoch)
        numbers = self._cache.numbers(command.spec.name, command.manifest.version)
        held = self._cache.get(numbers[0]) if numbers else None
        if held is None:
            self._receive(command)
        elif held.is_whole:
            self._announce(held)
        else:
            self._go_on(self._memory.fetch_of(numbers[0]), command)
        return Ack()

    def _receive(self, command: FetchModel) -> None:
        fetch = ModelFetch(
            self._id, self._link, command, self._hashing, self._tell_lost, self._memory.read_rest, self._moved
        )
        try:
            self._memory.fetch(command, fetch)
        except CacheFull as error:
            raise Refusal(409, str(error)) from error

    def _go_on(self, fetch: ModelFetch | None, command: FetchModel) -> None:
        """Go on along other flows. A model that is being read from disk, without a fetch, needs none."""
        try:
            if fetch is not None:
                fetch.go_on(command)
        except ValueError as error:
            raise Refusal(409, f"cannot go on with {command.spec.name!r}: {error}") from error

    async def _release_model(self, command: ReleaseModel, context: Context) -> Ack:
        if command.version in self._sent_versions():
            raise Refusal(
                409,
                f"version {command.version} of {command.model!r} is being sent; try again later",
                retry_after_ms=1000,
            )
        await self._memory.release(command.model, command.version)
        return Ack()

    async def _send(self, command: Send, context: Context) -> Ack:
        self._check_epoch(command.epoch)
        if command.from_disk is not None:
            await self._checkpoints.bring(command.from_disk, context.traceparent)
        copy, number = self._memory.find(command.version), self._cache.find(command.version)
        held = None if number is None else self._cache.get(number)
        if copy is None or held is None:
            raise Refusal(409, f"cannot send version {command.version}: this host neither has it nor reads it")
        ready, own = copy.ready, held.blocks_of(command.shard)
        if not own:
            raise Refusal(400, f"shard: version {command.version} has {held.shards}, there is no {command.shard}")
        # Receivers would map the memory of the whole model, where the blocks of a shard have other numbers.
        offer = offer_of(copy.blocks) if len(own) == len(copy.blocks) else None
        self._sending[command.plan_id] = command.version
        blocks = [copy.blocks[block] for block in own]
        traceparent = context.traceparent
        self._outgoing.start(command, blocks, lambda chunk: ready.wait_ready(own[chunk.block]), offer, traceparent)
        return Ack()

    def _check_epoch(self, epoch: int) -> None:
        if epoch != self._membership.epoch:
            raise Refusal(409, f"epoch {epoch} is stale, this host is at {self._membership.epoch}")

    async def _abort(self, command: Abort, context: Context) -> Ack:
        self._outgoing.abort(command.plan_id)
        return Ack()

    def _sent_versions(self) -> set[str]:
        plans = self._outgoing.plans
        self._sending = {plan: version for plan, version in self._sending.items() if plan in plans}
        return set(self._sending.values())

    def _connection_changed(self, connected: bool) -> None:
        """Announce again after an outage: an event that was lost would leave the registry waiting for ever."""
        for _, held in self._cache.items() if connected else []:
            if held.is_whole:
                self._announce(held)

    def _announce(self, held: Held) -> None:
        event = ModelRead(host=self._id, model=held.model, path=held.path, form=held.form, manifest=held.manifest)
        self._bus.publish(MODEL_READ, event, host=self._id)

    def _tell_lost(self, plan_id: str, ticket: int, failure: TransferFailed) -> None:
        log.warning("flow_lost", plan=plan_id, ticket=ticket, error=str(failure))
        self._lost.tell(plan_id, self._id, ticket, failure)

    def _tell_failure(self, held: Held, reason: str) -> None:
        event = ModelRead(host=self._id, model=held.model, path=held.path, form=held.form, error=reason)
        self._bus.publish(MODEL_READ, event, host=self._id)

    def _changed(self) -> None:
        self._cache_bytes.set(self._cache.used_bytes)
        self._membership.changed()
