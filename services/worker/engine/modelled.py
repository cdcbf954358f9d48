"""A model of an engine: it takes the time that a GPU would take, and computes nothing.

Blocks must have arrived before their layers run, requests have KV blocks, and activations and KV have the sizes of the
served model and are moved. Only the arithmetic is missing. Every layer looks for the KV that it attends to: where some
of it is missing or is not that of the request, tokens are others than they should be. Time is that of the event loop.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import structlog

from livescale.services.worker.engine.contract import (
    GPU_ROWS,
    AdapterData,
    AdapterMissing,
    AdapterUnavailable,
    FetchAdapter,
    KvTaker,
    LayerwiseRun,
    StageResult,
    rows_of,
    slab_chunks,
    zeros,
)
from livescale.services.worker.engine.modelled_engine import ModelledEngine
from livescale.services.worker.engine.modelled_states import StateMemory
from livescale.services.worker.engine.modelled_steps import (
    blocks_seconds,
    embedding_seconds,
    layer_seconds,
    step_seconds,
)
from livescale.services.worker.engine.send_pauses import SendPauses
from livescale.services.worker.grammars.masks import Vocabulary
from livescale.services.worker.scheduling.batch import (
    SPARE_BYTES,
    Batch,
    Chosen,
    KvCopy,
    KvPiece,
    KvSlice,
    ScheduledChunk,
    block_bytes,
)
from livescale.services.worker.scheduling.rates import EngineRates, layers_share
from livescale.shared.links.contract import View
from livescale.shared.messages.model_parallel import Meeting
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.requests import Submit
from livescale.shared.model.latency import Latency
from livescale.shared.runtime.clock import Clock
from livescale.shared.runtime.rate_limited_log import RateLimitedLog

# Timers are late by about a millisecond, and this thread works between two steps, which the host of a GPU does during
# the first. At most this much of both is subtracted from the next step; a longer delay is not caused by them.
MOST_LATE_SECONDS = 0.005

T = TypeVar("T")

log = structlog.get_logger()


class ModelledRunner:
    """A `Runner` whose steps take the time that `latency` says, divided by `speed`; adapters take none.

    Every answer is as long as it may be, unless the engine `ends` some at tokens that end them.
    """

    ends = False

    def __init__(
        self,
        memory_bytes: int,
        block_tokens: int,
        latency: Latency,
        speed: float,
        clock: Clock,
        host_bytes: int = 0,
        new_memory: Callable[[int], StateMemory] = zeros,
        worked: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`memory_bytes` and `host_bytes` are for the KV cache and KV in host memory; they are counted and not
        taken. KV that is exported, and activations, go into `new_memory`. `worked` says for how many seconds this
        thread has had a processor; under virtual time that counts for nothing."""
        self.new_memory = new_memory
        self.rates = EngineRates()
        self.joined_rows = GPU_ROWS
        self.applies_grammars = False  # tokens are made up
        self.on_last_layer: Callable[[], None] | None = None
        self.on_kv: KvTaker = lambda export, layers, data: None
        self.pauses = SendPauses()  # no step takes the processor, so nothing has to wait for one
        self.fetch_adapter: FetchAdapter | None = None
        self._adapters = dict[str, int]()
        self._memory_bytes = memory_bytes
        self._host_bytes = host_bytes
        self._block_tokens = block_tokens
        self._latency = latency
        self._speed = speed
        self._clock = clock
        self._model: ModelledEngine | None = None
        self._seldom = RateLimitedLog(clock.now)
        self._jobs = asyncio.Lock()  # is fair: what waits for a step comes before the next one
        self._free_at = 0.0
        self._late = 0.0
        self._worked = worked
        self._worked_before = worked()

    async def ready(self) -> None:
        log.warning("tokens_are_made_up", engine="modelled", latency=self._latency.source, speed=self._speed)

    async def kernels_name(self) -> str | None:
        """None, as it computes nothing that could have bits."""
        return None

    def copied_shapes(self, manifest: Manifest) -> list[str]:
        """Empty, as there are no kernels that want a layout."""
        return []

    @property
    def adapters(self) -> Mapping[str, int]:
        return self._adapters

    async def add_adapter(self, adapter: AdapterData) -> None:
        """Note that an adapter is here: rows that use it may run."""
        self._adapters[adapter.manifest.version] = adapter.manifest.size_bytes

    async def remove_adapter(self, version: str) -> None:
        self._adapters.pop(version, None)

    async def learn(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        """Do nothing, as the modelled engine applies no grammars."""

    async def first_mask(self, request: Submit, generated: Sequence[int]) -> None: ...

    def forget_masks(self, request_id: str) -> None: ...

    async def open_meeting(self, address: str) -> int:
        return 0

    async def meet(self, rank: int, size: int, address: str, at: Meeting) -> None:
        """Do nothing: ranks exchange nothing, and each takes the time that the instance takes."""

    async def load(self, manifest: Manifest, max_model_len: int) -> int:
        each = block_bytes(manifest, self._block_tokens)
        blocks = self._memory_bytes // each
        if blocks == 0:
            raise ValueError(
                f"--kv-bytes is {self._memory_bytes}, and one block of this model's KV cache takes {each}; raise it"
            )
        self.rates = EngineRates()
        self._model = ModelledEngine(
            manifest,
            blocks,
            self._block_tokens,
            self._host_bytes // each,
            self._tell_missing,
            self.new_memory,
            ends=self.ends,
        )
        return blocks

    async def add_block(self, index: int, buffer: View) -> None:
        self._loaded().add_block(index)
        await self._take(0.0)

    async def step(self, batch: Batch) -> Chosen:
        async with self._jobs:
            await self._bring(batch.chunks)
            return await self._step(batch)

    async def _bring(self, chunks: Iterable[ScheduledChunk]) -> None:
        """Fetch missing adapters of these rows. Raises AdapterMissing where one does not come."""
        wanted = {chunk.adapter for chunk in chunks if chunk.adapter is not None}
        for version in sorted(wanted - self._adapters.keys()):
            if self.fetch_adapter is None:
                raise AdapterMissing(f"adapter {version} was not added")
            try:
                await self.add_adapter(await self.fetch_adapter(version))
            except AdapterUnavailable as error:
                raise AdapterMissing(f"adapter {version} did not come: {error}") from error

    async def _step(self, batch: Batch) -> Chosen:
        model = self._loaded()
        chosen, seconds = model.step(batch), step_seconds(self._latency, batch, model.layers)
        if batch.exports:
            took = await self._take_by_layers(batch, seconds)
            self.rates.observe(batch, took)
            return chosen
        last = 0.0 if self.on_last_layer is None else seconds / model.layers
        took = await self._take(seconds - last)
        if last:
            if self.on_last_layer is not None:  # it may be asked for no more by now
                self.on_last_layer()
            took += await self._take(last)
        self.rates.observe(batch, took)
        return chosen

    async def _take_by_layers(self, batch: Batch, seconds: float) -> float:
        """Be busy for a step, while its KV leaves layer by layer. Returns how long it was."""
        model, took = self._loaded(), 0.0
        for layer in range(model.layers):
            if layer == model.layers - 1 and self.on_last_layer is not None:
                self.on_last_layer()
            took += await self._take(seconds / model.layers)
            for export, layers in batch.leaving.get(layer, ()):
                self.on_kv(export, layers, model.export_slices([export.slice(layers)], SPARE_BYTES))
        return took

    async def run_blocks(self, blocks: range, chunks: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
        await self._bring(chunks)
        model = self._loaded()
        passed = model.run_blocks(blocks, chunks, activation)
        seconds = await self._take(blocks_seconds(self._latency, chunks, blocks, model.layers))
        self.rates.observe_part(chunks, layers_share(blocks, model.layers), seconds)
        return passed

    async def run_layer(self, partials: Sequence[LayerwiseRun]) -> None:
        await self._bring(chunk for partial in partials for chunk in partial.chunks)
        model, layer = self._loaded(), partials[0].done
        seconds = 0.0
        model.run_layer(partials)
        for chunks in slab_chunks(partials):
            seconds += layer_seconds(self._latency, chunks, model.layers)
            seconds += 0.0 if layer else embedding_seconds(self._latency, chunks)
        took = await self._take(seconds)
        self.rates.observe_layer(rows_of(partials), model.layers, took)

    def export_kv(self, blocks: range, layers: int) -> asyncio.Future[View]:
        return _at_once(self._loaded().export_kv(blocks, layers))

    def export_slices(self, slices: Sequence[KvSlice], spare_bytes: int = 0) -> asyncio.Future[memoryview]:
        return _at_once(self._loaded().export_slices(slices, spare_bytes))

    async def import_slices(self, slices: Sequence[KvSlice], data: memoryview) -> None:
        self._loaded().import_slices(slices, data)

    async def lay_down(self, copies: Sequence[KvCopy], pieces: Sequence[KvPiece]) -> None:
        self._loaded().lay_down(copies, pieces)
        size_bytes = sum(data.nbytes for _, data in pieces)
        async with self._jobs:
            seconds = await self._take(self._latency.copy_seconds(size_bytes))
        if size_bytes:
            self.rates.observe_copy(size_bytes, seconds)

    async def unload(self) -> None:
        self._model = None
        self._adapters.clear()
        await self._take(0.0)

    async def close(self) -> None:
        self._model = None

    async def _take(self, seconds: float) -> float:
        """Be busy for `seconds`, after all that was asked for before. Returns how long it was."""
        now = self._clock.now()
        begun = max(now - self._made_up_for(now), self._free_at)
        self._free_at = due = begun + seconds / self._speed
        await asyncio.sleep(max(due - now, 0.0))
        if due > now:
            now = self._clock.now()
        self._late = min(now - due, MOST_LATE_SECONDS)
        self._worked_before = self._worked()
        return now - begun

    def _made_up_for(self, now: float) -> float:
        """By how many seconds a step that is asked for now began before: a GPU would not have waited for them."""
        idle = now - self._free_at > MOST_LATE_SECONDS
        return self._late if idle else min(self._late + self._worked() - self._worked_before, MOST_LATE_SECONDS)

    def _tell_missing(self, chunk: ScheduledChunk, layers: range) -> None:
        fields = {"position": chunk.start, "first_layer": layers.start, "last_layer": layers.stop - 1}
        self._seldom.warning("kv_is_not_the_requests", chunk.request_id, **fields)

    def _loaded(self) -> ModelledEngine:
        if self._model is None:
            raise RuntimeError("no model is loaded: call load first")
        return self._model


def _at_once(exported: T) -> asyncio.Future[T]:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.set_result(exported)
    return future
