"""A host: reads checkpoints from disk into its memory, block by block, and sends them from there."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from services.host.cache import CacheFull, Held, HostCache
from services.host.checkpoint import Checkpoint
from services.host.disk import Disk
from services.host.settings import HostSettings
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
from shared.transfer.chunks import Chunk
from shared.transfer.outgoing import Outgoing

log = structlog.get_logger()


class Host:
    """One a machine. Models are read one after the other; a model can be sent once it is whole."""

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
        self._checkpoints: dict[str, Checkpoint] = {}
        self._memory: dict[str, list[memoryview]] = {}  # of whole models; a send keeps its own hold on it
        self._to_read: asyncio.Queue[str] = asyncio.Queue()
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
        finally:
            await self._disk.close()
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
        elif held.manifest is not None:
            self._announce(held.model, held.manifest)
        checkpoint = self._checkpoints[spec.name]
        return ModelChecked(
            size_bytes=checkpoint.size_bytes,
            blocks=len(checkpoint.layouts),
            max_model_len=_max_model_len(spec, checkpoint),
        )

    async def _admit(self, spec: ModelSpec) -> None:
        try:
            checkpoint = await self._disk.open(spec.path, spec.dtype)
        except (CheckpointError, OSError) as error:
            raise Refusal(400, f"model {spec.name!r}: {error}") from error
        _max_model_len(spec, checkpoint)
        held = self._cache.get(spec.name)  # the same may have been asked for meanwhile
        if held is not None and held.manifest is None:
            if _same_source(held, spec):
                return
            raise Refusal(409, f"model {spec.name!r} is still being read from {held.path}; try again when it is whole")
        wanted = Held(
            model=spec.name,
            path=spec.path,
            dtype=spec.dtype,
            size_bytes=checkpoint.size_bytes,
            total=len(checkpoint.layouts),
        )
        try:
            self._cache.admit(wanted)
        except CacheFull as error:
            raise Refusal(409, str(error)) from error
        self._memory.pop(spec.name, None)
        self._checkpoints[spec.name] = checkpoint
        self._to_read.put_nowait(spec.name)
        self._changed()

    async def _send(self, command: Send, context: Context) -> Ack:
        if command.epoch != self._membership.epoch:
            raise Refusal(409, f"epoch {command.epoch} is stale, this host is at {self._membership.epoch}")
        held = self._cache.find(command.version)
        if held is None:
            raise Refusal(409, f"cannot send version {command.version}: this host does not hold all of it")
        self._outgoing.start(command, self._memory[held.model], _all_here)
        return Ack()

    async def _abort(self, command: Abort, context: Context) -> Ack:
        self._outgoing.abort(command.plan_id)
        return Ack()

    async def _read_models(self) -> None:
        while True:
            model = await self._to_read.get()
            try:
                manifest = await self._read(model, self._checkpoints[model])
            except (CheckpointError, OSError, MemoryError) as error:
                reason = str(error) or type(error).__name__
                log.error("model_not_read", model=model, error=reason)
                self._cache.drop(model)
                del self._checkpoints[model]
                self._bus.publish(MODEL_READ, ModelRead(host=self._id, model=model, error=reason), host=self._id)
            else:
                self._cache.whole(model, manifest)
                self._announce(model, manifest)
            self._changed()

    async def _read(self, model: str, checkpoint: Checkpoint) -> Manifest:
        began = self._clock.now()
        blocks = await self._disk.allocate([layout.size_bytes for layout in checkpoint.layouts])
        checksums = []
        for index, block in enumerate(blocks):
            checksums.append(await self._disk.read_block(checkpoint, index, block))
            self._cache.block_read(model)
            self._read_bytes.inc(block.nbytes)
            self._changed()
        self._memory[model] = blocks
        seconds = round(self._clock.now() - began, 3)
        log.info("model_read", model=model, size_bytes=checkpoint.size_bytes, blocks=len(blocks), seconds=seconds)
        return checkpoint.manifest(checksums)

    def _connection_changed(self, connected: bool) -> None:
        """An event that was lost with the connection would leave the registry waiting for ever."""
        for held in self._cache.models() if connected else []:
            if held.manifest is not None:
                self._announce(held.model, held.manifest)

    def _announce(self, model: str, manifest: Manifest) -> None:
        self._bus.publish(MODEL_READ, ModelRead(host=self._id, model=model, manifest=manifest), host=self._id)

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


def _max_model_len(spec: ModelSpec, checkpoint: Checkpoint) -> int:
    limit = checkpoint.config.max_position_embeddings
    if spec.max_model_len is not None and spec.max_model_len > limit:
        raise Refusal(
            400, f"model {spec.name!r}: max_model_len {spec.max_model_len} is more than the checkpoint's own {limit}"
        )
    return spec.max_model_len or limit


async def _all_here(chunk: Chunk) -> None:
    """A model is sent once all of it was read."""
