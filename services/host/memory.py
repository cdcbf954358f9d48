"""The models in a host's memory: how each gets there, from disk or over the link, and how it is released."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog

from livescale.services.host.cache import CacheFull, Held, HostCache, check_memory
from livescale.services.host.disk import Disk
from livescale.services.host.fetch import ModelFetch, OnBlock
from livescale.services.host.stored import Stored, read_span
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import FetchModel
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.process.run import World
from livescale.shared.transfer.flow_end import ReadyBlocks

log = structlog.get_logger()

Fill = Callable[[list[memoryview], OnBlock], Awaitable[Manifest]]


@dataclass
class ModelMemory:
    """The bytes of one model, and the task that fills them.

    `blocks` are there once the model's `turn` has come; a send keeps references of its own to them. A model is read
    from `stored`, or received by `fetch`. `traceparent` names the span of the first scale that waited for it.
    """

    stored: Stored | None = None
    fetch: ModelFetch | None = None
    traceparent: str | None = None
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    ready: ReadyBlocks = field(default_factory=ReadyBlocks)
    blocks: list[memoryview] = field(default_factory=list)
    filling: asyncio.Task[None] | None = None

    @property
    def source(self) -> str:
        """Where the bytes of this copy come from, as logs and metrics name it."""
        if self.stored is None:
            return "another node"
        return "packed form" if self.stored.is_packed else "safetensors"

    def close(self) -> None:
        if self.stored is not None:
            self.stored.close()


@dataclass(frozen=True)
class MemoryCallbacks:
    """What the memory calls when anything has changed, when a model is whole, and when one failed, with the reason."""

    changed: Callable[[], None]
    whole: Callable[[Held], None]
    failed: Callable[[Held, str], None]


class Memory:
    """Fills and releases the models of the cache.

    Models are read from disk one after the other. Versions of a model are side by side until one is released.
    """

    def __init__(
        self, cache: HostCache, disk: Disk, world: World, told: MemoryCallbacks, tasks: asyncio.TaskGroup
    ) -> None:
        self.cache = cache
        self._disk = disk
        self._clock = world.clock
        self._span_writer = world.telemetry.spans
        self._told = told
        self._copies: dict[int, ModelMemory] = {}
        self._tasks = tasks
        self._reading = asyncio.Lock()
        self._to_keep: asyncio.Queue[int] = asyncio.Queue()
        self._read_bytes = world.telemetry.counter(
            "livescale_host_read_bytes_total", "Bytes of parameters read from disk into the host cache"
        )

    def close(self) -> None:
        """Close all files. It is called when nothing is read any more."""
        for copy in self._copies.values():
            copy.close()

    def find(self, version: str) -> ModelMemory | None:
        """The bytes of this version, whole or on their way; None where its turn has not come."""
        number = self.cache.find(version)
        copy = None if number is None else self._copies[number]
        return copy if copy is not None and copy.blocks else None

    def fetch_of(self, number: int) -> ModelFetch | None:
        """How this model came, or comes, over the link; None for one from disk."""
        return self._copies[number].fetch

    async def turn(self, version: str) -> None:
        """Return once this version has its memory and is being filled, or will not come any more."""
        number = self.cache.find(version)
        if number is not None:
            await self._copies[number].turn.wait()

    def trace(self, version: str, traceparent: str | None) -> None:
        """Tell how this version is read in the trace of a scale that waits for it, the first of those that do."""
        number = self.cache.find(version)
        if number is not None and self._copies[number].traceparent is None:
            self._copies[number].traceparent = traceparent

    def find_same(self, spec: ModelSpec, stored: Stored) -> Held | None:
        """The model that was, or is being, read from these very files."""
        for number, held in self.cache.items():
            read_from = self._copies[number].stored
            if _is_of(held, spec) and (
                stored.files == read_from.files
                if read_from is not None
                else stored.manifest is not None and stored.manifest.version == held.version
            ):
                return held
        return None

    def find_whole(self, spec: ModelSpec) -> Held | None:
        """A whole model that was read from this directory, as its files were then."""
        return next((held for _, held in self.cache.items() if _is_of(held, spec) and held.is_whole), None)

    def is_reading(self, model: str) -> bool:
        """Whether some version of this model is being read from disk."""
        return any(
            held.model == model and not held.is_whole and self._copies[number].stored is not None
            for number, held in self.cache.items()
        )

    def read(self, spec: ModelSpec, stored: Stored) -> None:
        """Admit a model, to be read from `stored` when its turn comes. Raises CacheFull."""
        checkpoint = stored.checkpoint
        held = _held(spec, checkpoint.size_bytes, len(checkpoint.layouts), stored.manifest)
        number, copy = self._admit(held, ModelMemory(stored))
        copy.filling = self._tasks.create_task(self._read(number, copy, stored), name=f"read {spec.name}")

    def fetch(self, command: FetchModel, fetch: ModelFetch) -> None:
        """Admit a model, and begin to receive it. Raises CacheFull."""
        spec, manifest = command.spec, command.manifest
        held = _held(spec, manifest.size_bytes, len(manifest.blocks), manifest)
        number, copy = self._admit(held, ModelMemory(fetch=fetch))
        sizes = [block.size_bytes for block in manifest.blocks]
        copy.filling = self._tasks.create_task(self._try(number, copy, sizes, fetch.fill), name=f"fetch {spec.name}")

    def _admit(self, held: Held, copy: ModelMemory) -> tuple[int, ModelMemory]:
        waiting = sum(
            one.size_bytes for number, one in self.cache.items() if not self._copies[number].blocks and not one.is_whole
        )
        check_memory(held.model, held.size_bytes, self._disk.free_bytes() - waiting)
        number = self.cache.admit(held)
        self._copies[number] = copy
        self._told.changed()
        return number, copy

    async def release(self, model: str, version: str) -> None:
        """Give the memory of a version back, even while it is being filled."""
        for number in self.cache.numbers(model, version):
            await self._end(number, "it was released")

    async def _end(self, number: int, reason: str) -> None:
        """Fill this memory no further, and give it back."""
        copy = self._copies.get(number)
        if copy is not None and copy.filling is not None and not copy.filling.done():
            copy.filling.cancel()
            await asyncio.wait([copy.filling])
        self._drop(number, reason)

    def _drop(self, number: int, reason: str) -> None:
        copy = self._copies.pop(number, None)
        if copy is not None:
            copy.ready.lose(reason)
            copy.turn.set()
            copy.close()
            self.cache.drop(number)
            self._told.changed()

    async def _read(self, number: int, copy: ModelMemory, stored: Stored) -> None:
        async def fill(blocks: list[memoryview], on_block: OnBlock) -> Manifest:
            return stored.checkpoint.manifest(await self._read_blocks(stored, dict(enumerate(blocks)), on_block))

        try:
            async with self._reading:
                await self._try(number, copy, stored.sizes, fill)
        finally:
            stored.close()
        if number in self._copies and not stored.is_packed:
            self._to_keep.put_nowait(number)

    async def read_rest(self, command: FetchModel, blocks: Mapping[int, memoryview], on_block: OnBlock) -> None:
        """Read these blocks of a version that is being fetched, when its turn at the disk comes.

        Raises CheckpointError, OSError.
        """
        stored = await self._disk.open(command.spec)
        try:
            stored.expect(command.manifest)
            async with self._reading:
                await self._read_blocks(stored, blocks, on_block)
        finally:
            stored.close()

    async def _read_blocks(self, stored: Stored, blocks: Mapping[int, memoryview], on_block: OnBlock) -> list[int]:
        """Fill the blocks from disk. Returns their checksums in order."""
        checksums, indexes = list[int](), iter(blocks)
        async with aclosing(self._disk.read(stored, blocks)) as read:
            async for checksum in read:
                index = next(indexes)
                self._read_bytes.inc(stored.sizes[index])
                on_block(index)
                checksums.append(checksum)
        return checksums

    async def _try(self, number: int, copy: ModelMemory, sizes: list[int], fill: Fill) -> None:
        held = self.cache.get(number)
        assert held is not None
        began, reason = self._clock.wall(), None
        try:
            await self._fill(number, copy, sizes, fill)
        except (CacheFull, CheckpointError, OSError, MemoryError, ValueError) as error:
            reason = str(error) or type(error).__name__
            log.error("model_not_read", model=held.model, error=reason)
            self._drop(number, reason)
            self._told.failed(held, reason)
        if self._span_writer is not None:
            span = read_span(held, began, self._clock.wall(), copy.source, reason)
            self._span_writer.write(copy.traceparent, [span])

    async def _fill(self, number: int, copy: ModelMemory, sizes: list[int], fill: Fill) -> None:
        held = self.cache.get(number)
        assert held is not None

        def on_block(index: int) -> None:
            copy.ready.add(index)
            self.cache.block_ready(number, index)
            self._told.changed()

        began = self._clock.now()
        check_memory(held.model, held.size_bytes, self._disk.free_bytes())
        copy.blocks = await self._disk.allocate(sizes)
        copy.turn.set()
        manifest = await fill(copy.blocks, on_block)
        whole = self.cache.whole(number, manifest)
        for other in self.cache.numbers(whole.model, whole.version):
            if other != number:  # it may still be on its way: what is whole was read from other files
                await self._end(other, "it was read anew")
        stored = copy.stored
        log.info(
            "model_read",
            model=whole.model,
            size_bytes=whole.size_bytes,
            blocks=whole.total,
            seconds=round(self._clock.now() - began, 3),
            source=copy.source,
            direct_bytes=0 if stored is None else stored.direct_bytes,
        )
        self._told.whole(whole)

    async def keep_models(self) -> None:
        """Write what was read in the packed form, one model after the other, for ever.

        A model that was released meanwhile is skipped.
        """
        while True:
            number = await self._to_keep.get()
            held, copy = self.cache.get(number), self._copies.get(number)
            if held is not None and held.manifest is not None and copy is not None and copy.stored is not None:
                await self._disk.keep(copy.stored, held.manifest, copy.blocks)


def _held(spec: ModelSpec, size_bytes: int, total: int, manifest: Manifest | None) -> Held:
    """The cache's entry for a model of which no block is here yet."""
    dtype, shards, layout, kv_cache_dtype = spec.form
    return Held(
        model=spec.name,
        path=spec.path,
        dtype=dtype,
        shards=shards,
        layout=layout,
        kv_cache_dtype=kv_cache_dtype,
        size_bytes=size_bytes,
        total=total,
        manifest=manifest,
    )


def _is_of(held: Held, spec: ModelSpec) -> bool:
    """Whether it was read for the name, path and form of this spec."""
    return (held.model, held.path, held.form) == (spec.name, spec.path, spec.form)
