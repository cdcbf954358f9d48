"""A host: reads checkpoints from disk into its memory, block by block, and sends them from there."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog

from services.host.cache import CacheFull, Held, HostCache, check_memory
from services.host.disk import Disk
from services.host.settings import HostSettings
from services.host.stored import Stored
from shared.bus.contract import Context, Endpoint, Refusal
from shared.links.contract import Link
from shared.membership import Membership
from shared.messages.membership import HostReport
from shared.messages.message import Ack
from shared.messages.parameters import Manifest, ModelSpec
from shared.messages.scaling import Abort, ModelChecked, ModelRead, ReadModel, Send
from shared.model_config import CheckpointError
from shared.process import World
from shared.subjects import ABORT, MODEL_READ, READ_MODEL, SEND
from shared.transfer.outgoing import Outgoing
from shared.transfer.ready import ReadyBlocks

log = structlog.get_logger()


@dataclass
class _Copy:
    """A model's bytes: `blocks` are there once its turn to be read has come; a send keeps its own hold on them."""

    stored: Stored
    ready: ReadyBlocks = field(default_factory=ReadyBlocks)
    blocks: list[memoryview] = field(default_factory=list)


class Host:
    """One a machine. Models are read one after the other. One whose version is known is sent while it is read, others
    once they are whole.
    """

    def __init__(
        self, world: World, settings: HostSettings, disk: Disk, open_link: Callable[[], Awaitable[Link]]
    ) -> None:
        self._bus, self._clock = world.bus, world.clock
        self._info, self._machine = world.info, world.host
        self._id = world.info.id
        self._place = settings.place
        self._disk = disk
        self._open_link = open_link
        self._cache = HostCache(settings.cache_bytes)
        self._copies: dict[str, _Copy] = {}
        self._to_read: asyncio.Queue[str] = asyncio.Queue()
        self._to_keep: asyncio.Queue[str] = asyncio.Queue()
        self._read_bytes = world.telemetry.counter(
            "livescale_host_read_bytes_total", "Bytes of parameters read from disk into the host cache"
        )
        self._cache_bytes = world.telemetry.gauge("livescale_host_cache_bytes", "Bytes the host cache takes")

    async def run(self) -> None:
        link = await self._open_link()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._membership = Membership(
                    self._bus,
                    self._clock,
                    "host",
                    self._id,
                    self._machine,
                    address=link.address,
                    report=self._report,
                    on_stale=lambda: self._outgoing.abort_all(),
                    place=self._place,
                )
                self._outgoing = Outgoing(self._id, link, tasks, self._membership.changed)
                self._bus.watch_connection(self._connection_changed)
                await self._bus.serve(self._info, self._endpoints())
                tasks.create_task(self._membership.run(), name="membership")
                tasks.create_task(self._read_models(), name="reading")
                tasks.create_task(self._keep_models(), name="keeping")
        finally:
            await self._disk.close()
            for copy in self._copies.values():
                copy.stored.close()
            await link.close()

    def _endpoints(self) -> list[Endpoint]:
        me = {"id": self._id}
        return [
            Endpoint(READ_MODEL, self._read_model, me, limit=16),
            Endpoint(SEND, self._send, me),
            Endpoint(ABORT, self._abort, me),
        ]

    async def _read_model(self, command: ReadModel, context: Context) -> ModelChecked:
        """Answered as soon as the checkpoint is checked; `ModelRead` tells when it is whole, again if it already is."""
        spec = command.spec
        held = self._cache.get(spec.name)
        if held is None or not _same_source(held, spec):
            await self._admit(spec)
        elif held.is_whole:
            self._announce(held)
        stored = self._copies[spec.name].stored
        return ModelChecked(
            size_bytes=stored.checkpoint.size_bytes,
            blocks=len(stored.checkpoint.layouts),
            max_model_len=_max_model_len(spec, stored),
            manifest=stored.manifest,
        )

    async def _admit(self, spec: ModelSpec) -> None:
        try:
            stored = await self._disk.open(spec.path, spec.dtype)
        except (CheckpointError, OSError) as error:
            raise Refusal(400, f"model {spec.name!r}: {error}") from error
        held = self._cache.get(spec.name)
        if held is not None and _same_source(held, spec):  # it was asked for meanwhile
            stored.close()
            return
        try:
            if held is not None and not held.is_whole:
                raise Refusal(
                    409, f"model {spec.name!r} is still being read from {held.path}; try again when it is whole"
                )
            self._begin(spec, stored)
        except Refusal:
            stored.close()
            raise

    def _begin(self, spec: ModelSpec, stored: Stored) -> None:
        _max_model_len(spec, stored)
        size_bytes = stored.checkpoint.size_bytes
        wanted = Held(
            model=spec.name,
            path=spec.path,
            dtype=spec.dtype,
            size_bytes=size_bytes,
            total=len(stored.checkpoint.layouts),
            manifest=stored.manifest,
        )
        waiting = sum(copy.stored.checkpoint.size_bytes for copy in self._copies.values() if not copy.blocks)
        try:
            check_memory(spec.name, size_bytes, self._disk.free_bytes() - waiting)
            self._cache.admit(wanted)
        except CacheFull as error:
            raise Refusal(409, str(error)) from error
        self._copies[spec.name] = _Copy(stored)
        self._to_read.put_nowait(spec.name)
        self._changed()

    async def _send(self, command: Send, context: Context) -> Ack:
        if command.epoch != self._membership.epoch:
            raise Refusal(409, f"epoch {command.epoch} is stale, this host is at {self._membership.epoch}")
        held = self._cache.find(command.version)
        copy = None if held is None else self._copies[held.model]
        if copy is None or not copy.blocks:
            raise Refusal(409, f"cannot send version {command.version}: this host neither holds nor reads it")
        self._outgoing.start(command, copy.blocks, lambda chunk: copy.ready.wait_ready(chunk.block))
        return Ack()

    async def _abort(self, command: Abort, context: Context) -> Ack:
        self._outgoing.abort(command.plan_id)
        return Ack()

    async def _read_models(self) -> None:
        while True:
            model = await self._to_read.get()
            copy = self._copies[model]
            try:
                manifest = await self._read(model, copy)
            except (CacheFull, CheckpointError, OSError, MemoryError) as error:
                reason = str(error) or type(error).__name__
                log.error("model_not_read", model=model, error=reason)
                copy.ready.lose(reason)
                self._cache.drop(model)
                del self._copies[model]
                self._bus.publish(MODEL_READ, ModelRead(host=self._id, model=model, error=reason), host=self._id)
            else:
                self._announce(self._cache.whole(model, manifest))
                if not copy.stored.is_packed:
                    self._to_keep.put_nowait(model)
            finally:
                copy.stored.close()
            self._changed()

    async def _read(self, model: str, copy: _Copy) -> Manifest:
        began, stored, checksums = self._clock.now(), copy.stored, list[int]()
        size_bytes = stored.checkpoint.size_bytes
        check_memory(model, size_bytes, self._disk.free_bytes())
        copy.blocks = await self._disk.allocate(stored.sizes)
        async with aclosing(self._disk.read(stored, copy.blocks)) as read:
            async for checksum in read:
                self._read_bytes.inc(stored.sizes[len(checksums)])
                copy.ready.add(len(checksums))
                checksums.append(checksum)
                self._cache.block_read(model)
                self._changed()
        log.info(
            "model_read",
            model=model,
            size_bytes=size_bytes,
            blocks=len(checksums),
            seconds=round(self._clock.now() - began, 3),
            source="packed form" if stored.is_packed else "safetensors",
            direct_bytes=stored.direct_bytes,
        )
        return stored.checkpoint.manifest(checksums)

    async def _keep_models(self) -> None:
        """One at a time, and none that was given up meanwhile."""
        while True:
            held = self._cache.get(await self._to_keep.get())
            if held is not None and held.manifest is not None and held.is_whole:
                copy = self._copies[held.model]
                await self._disk.keep(copy.stored, held.manifest, copy.blocks)

    def _connection_changed(self, connected: bool) -> None:
        """An event that was lost with the connection would leave the registry waiting for ever."""
        for held in self._cache.models() if connected else []:
            if held.is_whole:
                self._announce(held)

    def _announce(self, held: Held) -> None:
        event = ModelRead(host=self._id, model=held.model, manifest=held.manifest)
        self._bus.publish(MODEL_READ, event, host=self._id)

    def _changed(self) -> None:
        self._cache_bytes.set(self._cache.used_bytes)
        self._membership.changed()

    def _report(self, epoch: int) -> HostReport:
        return HostReport(
            id=self._id,
            epoch=epoch,
            holdings=[held.holding() for held in self._cache.models()],
            cache_bytes=self._cache.used_bytes,
            cache_limit_bytes=self._cache.limit_bytes,
            flows_out=len(self._outgoing),
        )


def _same_source(held: Held, spec: ModelSpec) -> bool:
    return (held.path, held.dtype) == (spec.path, spec.dtype)


def _max_model_len(spec: ModelSpec, stored: Stored) -> int:
    limit = stored.checkpoint.config.max_position_embeddings
    if spec.max_model_len is not None and spec.max_model_len > limit:
        raise Refusal(
            400, f"model {spec.name!r}: max_model_len {spec.max_model_len} is more than the checkpoint's own {limit}"
        )
    return spec.max_model_len or limit
