"""The engine that computes: callers await every call, and torch runs on a thread of its own."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from torch._C._distributed_c10d import Store

from livescale.services.worker.engine.adapter_fetches import AdapterFetches
from livescale.services.worker.engine.attention import use_math_kernels
from livescale.services.worker.engine.bits import name_of_bits
from livescale.services.worker.engine.contract import (
    CPU_ROWS,
    GPU_ROWS,
    NO_GPU_FEATURES,
    AdapterData,
    FetchAdapter,
    GpuFeatures,
    KvTaker,
    LayerwiseRun,
    StageResult,
    rows_of,
)
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kernels.variants import TORCH, KernelChoice, choose_kernels
from livescale.services.worker.engine.matrices import copied_matrices, shapes_of
from livescale.services.worker.engine.memory import EngineMemory
from livescale.services.worker.engine.send_pauses import SendPauses
from livescale.services.worker.engine.tensor_parallel import ProcessGroup, least, open_store, reach_store
from livescale.services.worker.grammars.masks import Masks, Vocabulary
from livescale.services.worker.scheduling.batch import Batch, Chosen, KvCopy, KvExport, KvPiece, KvSlice, ScheduledChunk
from livescale.services.worker.scheduling.rates import EngineRates, layers_share
from livescale.shared.links.contract import View
from livescale.shared.memory.devices import CPU
from livescale.shared.messages.model_parallel import Meeting
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.requests import Submit

MASK_SECONDS = 0.001  # how often a first mask is looked for

T = TypeVar("T")


class EngineRunner:
    """One engine at a time, in KV memory that is allocated and touched at the start and kept for every model.

    Calls are carried out in the order they were made. A caller that is cancelled leaves its step running: the next
    call waits for it.
    """

    def __init__(
        self,
        kv_bytes: int,
        block_tokens: int,
        threads: int = 1,
        device: str = CPU,
        kernels: KernelChoice | None = None,
        host_kv_bytes: int = 0,
        on_gpu: GpuFeatures = NO_GPU_FEATURES,
    ) -> None:
        """`kernels` are those of a CPU, by default the best ones."""
        self.rates = EngineRates()
        self.pauses = SendPauses()
        self.joined_rows = CPU_ROWS if device == CPU else GPU_ROWS
        self.applies_grammars = True
        self.on_last_layer: Callable[[], None] | None = None
        self.on_kv: KvTaker = lambda export, layers, data: None
        self.fetch_adapter: FetchAdapter | None = None
        self._device = device
        self._kernels = (kernels or choose_kernels("auto", threads)) if device == CPU else KernelChoice(TORCH, None)
        self._on_gpu = on_gpu
        self._block_tokens = block_tokens
        self._engine: TorchEngine | None = None
        self._store: Store | None = None
        self._ranks: ProcessGroup | None = None
        self._masks: Masks | None = None
        self._thread = ThreadPoolExecutor(1, "engine", torch.set_num_threads, (threads,))
        if device != CPU:
            use_math_kernels()
        self._laid = 0.0, 0.0  # when KV was last laid down: since, and until
        self._memory = EngineMemory(self._thread, device, kv_bytes, host_kv_bytes)

    async def ready(self) -> None:
        """Return once its memory is touched and torch is warm. Raises MemoryError."""
        await self.call(self._memory.warm_up)

    async def kernels_name(self) -> str | None:
        """The name of the bits that it computes; see `name_of_bits`."""
        return await self.call(lambda: name_of_bits(self._kernels, self._device, self._on_gpu.flashinfer))

    def copied_shapes(self, manifest: Manifest) -> list[str]:
        """The shapes of the matrices that are copied when they arrive, because the kernels want another layout."""
        return shapes_of(copied_matrices(manifest, self._kernels.kernels))

    async def open_meeting(self, address: str) -> int:
        """Open a place at `address` where the ranks of an instance meet, until `unload`. Returns its port. Raises
        RankLost."""
        self._store, port = await asyncio.to_thread(open_store, address)
        return port

    async def meet(self, rank: int, size: int, address: str, at: Meeting) -> None:
        """Join the other ranks as rank `rank` of `size`, in all steps until `unload`.

        The others reach this one at `address`; they meet at `at`. Raises RankLost.
        """

        def join() -> ProcessGroup:
            store = self._store or reach_store(at.address, at.port)
            return ProcessGroup(store, rank, size, address, self._device)

        self._ranks = await asyncio.to_thread(join)

    async def load(self, manifest: Manifest, max_model_len: int) -> int:
        """Prepare for the blocks of a model. Returns its number of KV blocks. Raises ValueError where not even one
        fits, and MemoryError where there is none for copies of matrices."""
        loop = asyncio.get_running_loop()

        def last_layer_begins() -> None:
            if self.on_last_layer is not None:
                loop.call_soon_threadsafe(self.on_last_layer)

        def kv_leaves(export: KvExport, layers: range, data: memoryview) -> None:
            loop.call_soon_threadsafe(self.on_kv, export, layers, data)

        def make() -> int:
            kernels, ranks, memory = self._kernels.kernels, self._ranks, self._memory
            memory.have_copies(manifest, kernels)
            self._engine = TorchEngine(
                manifest, memory.kv, self._block_tokens, max_model_len, kernels, ranks, memory.host_kv, self._on_gpu
            )
            self._engine.on_last_layer, self._engine.on_kv = last_layer_begins, kv_leaves
            self._engine.output_head.masks = self._masks
            self.rates.fetch_tokens_per_second = self._engine.store.fetch_rate()
            blocks = self._engine.store.blocks
            # Blocks are named by the rank that leads: each rank has them.
            return blocks if ranks is None else least(blocks, ranks)

        self.rates = EngineRates()
        return await self.call(make)

    async def add_block(self, index: int, buffer: View) -> None:
        """Lay out block `index`, which is whole in `buffer`. The buffer is in use until `unload` has returned."""
        await self.call(lambda: self._loaded().add_block(index, buffer))

    @property
    def adapters(self) -> Mapping[str, int]:
        return {} if self._engine is None else self._engine.adapters

    async def add_adapter(self, adapter: AdapterData) -> None:
        await self.call(lambda: self._loaded().add_adapter(adapter.manifest, adapter.data))

    async def remove_adapter(self, version: str) -> None:
        await self.call(lambda: None if self._engine is None else self._engine.remove_adapter(version))

    async def learn(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        """Have grammars applied to the model that is loaded, or is going to be, until `unload`. Raises MasksFailed."""
        masks = self._masks = Masks(vocabulary, vocab_size)
        if self._engine is not None:
            self._engine.output_head.masks = masks
        try:
            await asyncio.to_thread(masks.start)
        except BaseException:
            masks.close()
            raise

    async def first_mask(self, request: Submit, generated: Sequence[int]) -> None:
        """Return once it is known which tokens a request's grammar permits after those that it has, or never will."""
        while (masks := self._masks) is not None:
            masks.begin(request.request_id, request.sampling.grammar, generated)
            if masks.is_done(request.request_id):
                return
            await asyncio.sleep(MASK_SECONDS)

    def forget_masks(self, request_id: str) -> None:
        """A request that had a grammar has ended, or is no longer here."""
        if self._masks is not None:
            self._masks.forget(request_id)

    async def step(self, batch: Batch) -> Chosen:
        """Run `batch` through the whole model. Returns what is chosen for its samplings."""

        def timed() -> tuple[Chosen, float, float]:
            came = time.perf_counter()
            adapt(self._loaded())
            begun, computed = time.perf_counter(), time.thread_time()
            chosen = self._loaded().step(batch)
            if self._device != CPU:
                torch.cuda.synchronize(self._device)
            # Neither adapters nor KV of others that the thread took meanwhile are of the step.
            other = begun - came + max(0.0, self._laid[1] - max(self._laid[0], asked))
            return chosen, other, time.perf_counter() - begun - (time.thread_time() - computed)

        adapt = AdapterFetches(batch.chunks, self.fetch_adapter)
        rates, asked, lost = self.rates, time.perf_counter(), 0.0
        self.pauses.step_begins()
        try:
            chosen, other, lost = await self.call(timed)
        finally:
            self.pauses.step_ends(lost)
        # The ways to the thread and back count: decodes wait for them in every step, however few rows it has.
        rates.observe(batch, time.perf_counter() - asked - other)
        return chosen

    async def run_blocks(self, blocks: range, chunks: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
        """Run `chunks` through a part of the model. Raises BlockMissing."""

        def timed() -> StageResult:
            engine, begun = adapt(self._loaded()), time.perf_counter()
            passed = engine.run_blocks(blocks, chunks, activation)
            self.rates.observe_part(chunks, layers_share(blocks, engine.store.layers), time.perf_counter() - begun)
            return passed

        adapt = AdapterFetches(chunks, self.fetch_adapter)
        return await self.call(timed)

    async def run_layer(self, partials: Sequence[LayerwiseRun]) -> None:
        """Run the next layer of all these requests together; it is the same layer.

        Raises BlockMissing before its block was added.
        """

        def timed() -> None:
            engine, begun = adapt(self._loaded()), time.perf_counter()
            engine.run_layer(partials)
            self.rates.observe_layer(rows_of(partials), engine.store.layers, time.perf_counter() - begun)

        adapt = AdapterFetches([chunk for partial in partials for chunk in partial.chunks], self.fetch_adapter)
        await self.call(timed)

    def new_memory(self, size_bytes: int) -> View:
        """Return memory of the host for KV or an activation of another runner. What is in it before means nothing."""
        return np.empty(size_bytes, np.uint8).data  # zeros first would cost as much as a copy

    def export_kv(self, blocks: range, layers: int) -> asyncio.Future[View]:
        """Copy the KV of the first `layers` layers in `blocks` as it is now, before the blocks' next owner writes."""
        return asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: self._loaded().store.export_kv(blocks, range(layers))
        )

    def export_slices(self, slices: Sequence[KvSlice], spare_bytes: int = 0) -> asyncio.Future[memoryview]:
        """Copy these slices of KV as they are now, one after the other. So many spare bytes follow, for the caller."""
        return asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: self._loaded().store.export_slices(slices, spare_bytes)
        )

    async def import_slices(self, slices: Sequence[KvSlice], data: memoryview) -> None:
        """Store what `export_slices` returned for the same positions and layers. Raises ValueError for a wrong number
        of bytes."""
        await self.call(lambda: self._loaded().store.import_slices(slices, data))

    async def lay_down(self, copies: Sequence[KvCopy], pieces: Sequence[KvPiece]) -> None:
        """Make these copies within the cache, then store pieces of KV from other workers. Raises ValueError for a wrong
        number of bytes."""

        def timed() -> None:
            begun = time.perf_counter()
            self._loaded().store.lay_down(copies, pieces)
            if self._device != CPU:
                torch.cuda.synchronize(self._device)
            self._laid = begun, time.perf_counter()
            if pieces and not copies:
                self.rates.observe_copy(sum(data.nbytes for _, data in pieces), self._laid[1] - begun)

        await self.call(timed)

    async def unload(self) -> None:
        """Forget the model and let go of its buffers."""

        def forget() -> None:
            self._engine = self._ranks = self._store = None

        await self.call(forget)
        await self._end_masks()

    async def close(self) -> None:
        """Wait for what is under way and end the thread. Idempotent."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        await self._end_masks()
        self._engine = self._ranks = self._store = None

    async def _end_masks(self) -> None:
        masks, self._masks = self._masks, None
        if masks is not None:
            await asyncio.to_thread(masks.close)

    async def call(self, job: Callable[[], T]) -> T:
        """Run `job` on the torch thread, after all that was asked for before.

        It runs to its end even if its caller is cancelled, because other ranks run it, too.
        """
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, job))

    def _loaded(self) -> TorchEngine:
        if self._engine is None:
            raise RuntimeError("no model is loaded: call load first")
        return self._engine
