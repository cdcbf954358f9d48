"""A host: keeps models in its memory, read from disk or received from others, and sends them from there."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from services.host.cache import CacheFull, Held, HostCache
from services.host.disk import Disk
from services.host.fetch import fetch_blocks
from services.host.memory import Memory, Told
from services.host.settings import HostSettings
from services.host.stored import Stored
from shared.bus.contract import Context, Endpoint, Refusal
from shared.links.contract import Link
from shared.membership import Membership
from shared.messages.copies import CheckModel, FetchModel, ModelChecked, ModelRead, ReadModel, ReleaseModel
from shared.messages.membership import HostReport
from shared.messages.message import Ack
from shared.messages.parameters import Manifest, ModelSpec
from shared.messages.transfers import Abort, Send
from shared.model_config import CheckpointError
from shared.process import World
from shared.subjects import ABORT, CHECK_MODEL, FETCH_MODEL, MODEL_READ, READ_MODEL, RELEASE_MODEL, SEND
from shared.transfer.door import OpenDoor, offer_of
from shared.transfer.outgoing import Outgoing

log = structlog.get_logger()


class Host:
    """One a machine. A model whose version is known is sent while it is read, others once they are whole."""

    def __init__(
        self,
        world: World,
        settings: HostSettings,
        disk: Disk,
        open_link: Callable[[], Awaitable[Link]],
        open_door: OpenDoor = lambda address: None,
    ) -> None:
        self._world = world
        self._bus = world.bus
        self._id = world.info.id
        self._place = settings.place
        self._disk = disk
        self._open_link = open_link
        self._open_door = open_door
        self._cache = HostCache(settings.cache_bytes)
        self._sending: dict[str, str] = {}  # versions, by plan
        self._cache_bytes = world.telemetry.gauge("livescale_host_cache_bytes", "Bytes the host cache takes")

    async def run(self) -> None:
        self._link = link = await self._open_link()
        door = self._open_door(link.address)
        self._hashing = ThreadPoolExecutor(1, "hashing")
        told = Told(self._changed, self._announce, self._tell_failure)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._membership = self._member(link)
                self._memory = Memory(self._cache, self._disk, self._world, told, tasks)
                self._outgoing = Outgoing(self._id, link, tasks, self._membership.changed, door)
                self._bus.watch_connection(self._connection_changed)
                await self._bus.serve(self._world.info, self._endpoints())
                tasks.create_task(self._membership.run(), name="membership")
                tasks.create_task(self._memory.keep_models(), name="keeping")
        finally:
            await self._disk.close()
            self._memory.close()
            await asyncio.to_thread(self._hashing.shutdown)
            if door is not None:
                await door.close()
            await link.close()

    def _member(self, link: Link) -> Membership:
        return Membership(
            self._bus,
            self._world.clock,
            "host",
            self._id,
            self._world.host,
            address=link.address,
            report=self._report,
            on_stale=lambda: self._outgoing.abort_all(),
            place=self._place,
        )

    def _endpoints(self) -> list[Endpoint]:
        me = {"id": self._id}
        return [
            Endpoint(CHECK_MODEL, self._check_model, me, limit=16),
            Endpoint(READ_MODEL, self._read_model, me, limit=16),
            Endpoint(FETCH_MODEL, self._fetch_model, me),
            Endpoint(RELEASE_MODEL, self._release_model, me),
            Endpoint(SEND, self._send, me),
            Endpoint(ABORT, self._abort, me),
        ]

    async def _check_model(self, command: CheckModel, context: Context) -> ModelChecked:
        stored = await self._open(command.spec)
        try:
            return self._checked(command.spec, stored)
        finally:
            stored.close()

    async def _read_model(self, command: ReadModel, context: Context) -> ModelChecked:
        """Answered as soon as the checkpoint is checked; `ModelRead` tells when it is whole, again if it already is."""
        spec = command.spec
        whole = self._memory.find_whole(spec)
        try:
            stored = await self._open(spec)
        except Refusal:
            if whole is None:
                raise
            return self._tell_again(spec, whole)
        try:
            checked = self._checked(spec, stored)
            same = self._memory.find_same(spec, stored)
            if same is None:
                self._begin(spec, stored)
                return checked
        except Refusal:
            stored.close()
            raise
        stored.close()
        if same.is_whole:
            self._announce(same)
        return checked

    def _tell_again(self, spec: ModelSpec, held: Held) -> ModelChecked:
        """Its files are gone, and it is in memory."""
        self._announce(held)
        limit = 1 if held.manifest is None else held.manifest.config.max_position_embeddings
        return ModelChecked(
            size_bytes=held.size_bytes,
            blocks=held.total,
            max_model_len=spec.max_model_len or limit,
            manifest=held.manifest,
        )

    def _begin(self, spec: ModelSpec, stored: Stored) -> None:
        if self._memory.is_reading(spec.name):
            raise Refusal(409, f"model {spec.name!r} is still being read from other files; try again when it is whole")
        try:
            self._memory.read(spec, stored)
        except CacheFull as error:
            raise Refusal(409, str(error)) from error

    async def _open(self, spec: ModelSpec) -> Stored:
        try:
            return await self._disk.open(spec.path, spec.dtype)
        except (CheckpointError, OSError) as error:
            raise Refusal(400, f"model {spec.name!r}: {error}") from error

    def _checked(self, spec: ModelSpec, stored: Stored) -> ModelChecked:
        same = self._memory.find_same(spec, stored)
        return ModelChecked(
            size_bytes=stored.checkpoint.size_bytes,
            blocks=len(stored.checkpoint.layouts),
            max_model_len=_max_model_len(spec, stored),
            manifest=stored.manifest if same is None else same.manifest,
        )

    async def _fetch_model(self, command: FetchModel, context: Context) -> Ack:
        """Answered once it may be sent; `ModelRead` tells when it is whole, or that the sender was lost."""
        self._check_epoch(command.epoch)
        numbers = self._cache.numbers(command.spec.name, command.manifest.version)
        held = self._cache.get(numbers[0]) if numbers else None
        if held is None:
            self._receive(command)
        elif held.is_whole:
            self._announce(held)
        return Ack()

    def _receive(self, command: FetchModel) -> None:
        async def fill(blocks: list[memoryview], on_block: Callable[[int], None]) -> Manifest:
            await fetch_blocks(self._link, self._id, command, blocks, self._hashing, on_block)
            return command.manifest

        try:
            self._memory.fetch(command.spec, command.manifest, fill)
        except CacheFull as error:
            raise Refusal(409, str(error)) from error

    async def _release_model(self, command: ReleaseModel, context: Context) -> Ack:
        if command.version in self._sent_versions():
            raise Refusal(409, f"version {command.version} of {command.model!r} is being sent", retry_after_ms=1000)
        await self._memory.release(command.model, command.version)
        return Ack()

    async def _send(self, command: Send, context: Context) -> Ack:
        self._check_epoch(command.epoch)
        copy = self._memory.find(command.version)
        if copy is None:
            raise Refusal(409, f"cannot send version {command.version}: this host neither holds nor reads it")
        ready, offer = copy.ready, offer_of(copy.blocks)
        self._sending[command.plan_id] = command.version
        self._outgoing.start(command, copy.blocks, lambda chunk: ready.wait_ready(chunk.block), offer)
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
        """An event that was lost with the connection would leave the registry waiting for ever."""
        for _, held in self._cache.items() if connected else []:
            if held.is_whole:
                self._announce(held)

    def _announce(self, held: Held) -> None:
        event = ModelRead(host=self._id, model=held.model, manifest=held.manifest)
        self._bus.publish(MODEL_READ, event, host=self._id)

    def _tell_failure(self, model: str, reason: str) -> None:
        self._bus.publish(MODEL_READ, ModelRead(host=self._id, model=model, error=reason), host=self._id)

    def _changed(self) -> None:
        self._cache_bytes.set(self._cache.used_bytes)
        self._membership.changed()

    def _report(self, epoch: int) -> HostReport:
        sent = self._sent_versions()
        return HostReport(
            id=self._id,
            epoch=epoch,
            holdings=[held.holding(sending=held.version in sent) for _, held in self._cache.items()],
            cache_bytes=self._cache.used_bytes,
            cache_limit_bytes=self._cache.limit_bytes,
            flows_out=len(self._outgoing),
        )


def _max_model_len(spec: ModelSpec, stored: Stored) -> int:
    limit = stored.checkpoint.config.max_position_embeddings
    if spec.max_model_len is not None and spec.max_model_len > limit:
        raise Refusal(
            400, f"model {spec.name!r}: max_model_len {spec.max_model_len} is more than the checkpoint's own {limit}"
        )
    return spec.max_model_len or limit
