"""The engine: embedding, layers and head as separate steps over rows of many requests, on the device of its KV cache.

A row's result depends on its own tokens only, bit for bit. The compiled kernels take every sum in a fixed order.
Torch's kernels, on a CPU or a GPU, see the same number of rows at every call; attention is computed per sequence,
prompts are cut at fixed positions, generated positions attend one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch

from livescale.services.worker.engine.adapters import Adapters
from livescale.services.worker.engine.compiled_layer import CompiledAttention, CompiledLayer, LayerMemory, in_one_call
from livescale.services.worker.engine.contract import (
    NO_GPU_FEATURES,
    BlockMissing,
    GpuFeatures,
    KvTaker,
    LayerwiseRun,
    StageResult,
    slabs,
)
from livescale.services.worker.engine.cuda_graphs import CudaCapture, GraphedLayer, LayerGraphs
from livescale.services.worker.engine.embeddings import InputEmbeddings
from livescale.services.worker.engine.head import Head
from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.kv_store import KvStore
from livescale.services.worker.engine.layer import Layer
from livescale.services.worker.engine.paged_attention import choose_attention
from livescale.services.worker.engine.parameters import TORCH_DTYPES, block_tensors, padded
from livescale.services.worker.engine.rope import rope_tables
from livescale.services.worker.engine.rows import Attention, Rows
from livescale.services.worker.engine.tensor_parallel import Ranks, shared
from livescale.services.worker.scheduling.batch import (
    NO_BYTES,
    SPARE_BYTES,
    Batch,
    Chosen,
    KvExport,
    ScheduledChunk,
)
from livescale.shared.links.contract import View
from livescale.shared.messages.parameters import Manifest
from livescale.shared.model.sharding import shard_config

AnyLayer = Layer | GraphedLayer | CompiledLayer


class TorchEngine:
    """One model with its KV cache in `memory`, for requests of up to `max_model_len` tokens. Call it on the torch
    thread.

    `kernels` are the compiled ones, or None for torch's; workers that exchange activations or KV must have the same. A
    model that is cut for several `ranks` has one shard here, and all ranks take the same steps.
    """

    def __init__(
        self,
        manifest: Manifest,
        memory: torch.Tensor,
        block_tokens: int,
        max_model_len: int,
        kernels: Kernels | None = None,
        ranks: Ranks | None = None,
        host_memory: torch.Tensor | None = None,
        on_gpu: GpuFeatures = NO_GPU_FEATURES,
    ) -> None:
        config = shard_config(manifest.config, manifest.shard, manifest.shards)
        dtype = TORCH_DTYPES[manifest.dtype]
        self.store = KvStore(memory, config, manifest.dtype, block_tokens, host_memory)
        self._manifest = manifest
        self._config = config
        self._ranks = ranks
        self._row_bytes = config.hidden_size * dtype.itemsize
        group = config.num_attention_heads // config.num_key_value_heads
        ropes = rope_tables(config, max_model_len, dtype, memory.device, kernels)
        kinds = [config.kind(layer) for layer in range(config.num_hidden_layers)]
        self._kernels = kernels
        self._attention: Attention
        self._memory: LayerMemory | None = None
        if self._kernels is None:
            flashinfer = on_gpu.flashinfer and not config.encodes
            self._attention = choose_attention(self.store, ropes, group, max_model_len, flashinfer, kinds)
        else:
            compiled = CompiledAttention(self._kernels, self.store, ropes, group, max_model_len, kinds)
            self._attention = compiled
            # Between two calls of a layer's parts ranks wait for each other, and latent attention has parts of its own.
            if ranks is None and config.latent is None:
                self._memory = LayerMemory(config, self._kernels, compiled)
        self._embeddings: InputEmbeddings | None = None
        self._layers: dict[int, AnyLayer] = {}
        self._whole: dict[int, Layer] = {}  # the same, and what adapters add
        self._adapted: dict[int, Layer | CompiledLayer] = {}
        self._adapters = Adapters(config, kernels, memory.device, manifest.shard, manifest.shards)
        self._graphs: LayerGraphs | None = None
        # No graph waits for another rank, and which rows experts get differs from step to step. The slabs that graphs
        # share have room for keys and values apart.
        if on_gpu.graphs and ranks is None and config.experts is None and config.latent is None:
            self._graphs = LayerGraphs(config, self.store.cache, CudaCapture(memory.device))
        self.output_head = Head(manifest, config, kernels, ranks)
        self.on_last_layer: Callable[[], None] = lambda: None
        self.on_kv: KvTaker = lambda export, layers, data: None
        self._leaving: dict[int, list[tuple[KvExport, range]]] = {}  # of the step that runs

    @torch.inference_mode()
    def add_block(self, index: int, buffer: View) -> None:
        """Take block `index` from `buffer`, which must not change while the engine lives. Blocks may come in any
        order."""
        if not 0 <= index < len(self._manifest.blocks):
            raise ValueError(f"the model has blocks 0 to {len(self._manifest.blocks) - 1}, not {index}")
        tensors = block_tensors(self._manifest.blocks[index], buffer, self._manifest.dtype)
        if index == 0:
            self._embeddings = InputEmbeddings(self._manifest, self._config, tensors, self._kernels, self._ranks)
        elif index <= self._config.num_hidden_layers:
            sinks = tensors.get(f"model.layers.{index - 1}.self_attn.sinks")
            if sinks is not None:
                self._attention.take_sinks(index - 1, sinks)
            layer = Layer(self._config, index - 1, tensors, self._kernels, self._ranks, self._manifest.shard)
            self._whole[index - 1] = layer
            self._layers[index - 1] = self._fastest(layer)
        else:
            self.output_head.add(tensors)
        if self._embeddings is not None:
            self.output_head.tie(self._embeddings.table)

    @torch.inference_mode()
    def add_adapter(self, manifest: Manifest, buffer: View) -> None:
        """Take an adapter, whose one block is in `buffer`. Rows use it by its version. Raises ValueError where it is
        for another model."""
        if manifest.config != self._manifest.config or manifest.dtype != self._manifest.dtype:
            raise ValueError(f"adapter {manifest.version} is for another model")
        self._adapters.add(manifest, buffer)

    @property
    def adapters(self) -> Mapping[str, int]:
        """The bytes of each adapter that is here, by its version."""
        return self._adapters.sizes

    def remove_adapter(self, version: str) -> None:
        """Forget an adapter that no row uses any more; idempotent."""
        self._adapters.remove(version)

    def _fastest(self, layer: Layer) -> AnyLayer:
        if self._graphs is not None:
            return GraphedLayer(layer, self._graphs)
        return layer if self._memory is None else in_one_call(layer, self._memory)

    def rows(self, chunks: Sequence[ScheduledChunk]) -> Rows:
        """What the other steps need to know of `chunks`; made once, used for all layers."""
        return Rows(chunks, self._attention, self.store.cache.device)

    @torch.inference_mode()
    def embed(self, rows: Rows) -> torch.Tensor:
        """Make the embeddings of all rows: `[row, hidden]`. Raises BlockMissing."""
        if self._embeddings is None:
            raise BlockMissing("cannot embed: block 0 was not added")
        return self._embeddings.embed(rows)

    @torch.inference_mode()
    def layers(self, start: int, end: int, hidden: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Run layers `start` to `end - 1` on activations `[row, hidden]`, and store their KV in the cache.

        The activations may be overwritten, and the result may be gone with the next call. Raises BlockMissing.
        """
        missing = [layer for layer in range(start, end) if layer not in self._layers]
        if missing:
            raise BlockMissing(f"cannot run layer {missing[0]}: block {missing[0] + 1} was not added")
        hidden = padded(hidden) if self._kernels is None else hidden
        layers = self._with_adapters(rows) if rows.adapted else self._layers
        for layer in range(start, end):
            if layer == self._config.num_hidden_layers - 1:
                self.on_last_layer()
            hidden = layers[layer](hidden, rows)
            if layer in self._leaving:
                self._export(layer)
        return hidden[: rows.count]

    def _with_adapters(self, rows: Rows) -> Mapping[int, AnyLayer]:
        """The layers with what the adapters of these rows add. Raises AdapterMissing."""
        self._adapters.begin(rows.chunks)
        for index in self._whole.keys() - self._adapted.keys():
            layer = self._layers[index]
            changed = layer if isinstance(layer, CompiledLayer) else self._whole[index]
            self._adapted[index] = changed.adapted(self._adapters)
        return self._adapted

    def _export(self, layer: int) -> None:
        for export, layers in self._leaving[layer]:
            self.on_kv(export, layers, self.store.export_slices([export.slice(layers)], SPARE_BYTES))

    @torch.inference_mode()
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Activations `[row, hidden]` -> logits `[row, vocab]`. Raises BlockMissing."""
        return self.output_head.logits(hidden)

    @torch.inference_mode()
    def step(self, batch: Batch) -> Chosen:
        """Run all layers that are left of each chunk of `batch`. Rank 0 returns what is chosen for its samplings.

        `on_kv` is called with each piece of KV that leaves, as soon as its last layer has run.
        """
        self.lay_down(batch)
        self._leaving = batch.leaving
        self.output_head.begin_masks(batch.chunks)
        try:
            hidden, rows = self._through(batch.chunks)
        finally:
            self._leaving = {}
        return self.output_head.choose(hidden, rows.sampled, batch.chunks)

    def lay_down(self, batch: Batch) -> None:
        """Store the KV that `batch` brings, from the prefix cache or from other workers, where the step reads it."""
        for copy in batch.prefixes.copies:
            self.store.copy_kv(copy.source, copy.target)
        for kv in batch.imports:
            self.store.import_kv(kv.blocks, range(kv.layers), kv.data)

    def _through(self, chunks: Sequence[ScheduledChunk]) -> tuple[torch.Tensor, Rows]:
        """Run all layers, where rows join the others at the layer at which they enter: `[row, hidden]` before the
        head."""
        starts = sorted({chunk.layer for chunk in chunks})
        hidden = None
        for start, end in pairwise([*starts, self._config.num_hidden_layers]):
            rows = self.rows([chunk for chunk in chunks if chunk.layer <= start])
            come = self._entering([chunk for chunk in chunks if chunk.layer == start]) if start else self.embed(rows)
            hidden = self.layers(start, end, come if hidden is None else torch.cat((hidden, come)), rows)
        assert hidden is not None
        return hidden, rows

    def _entering(self, chunks: Sequence[ScheduledChunk]) -> torch.Tensor:
        """The activations with which these chunks enter, as a copy, since bytes may lie at any address. Rank 0 has
        them."""
        if self._manifest.shard:
            return self._shared_rows(sum(len(chunk.tokens) for chunk in chunks))
        entries = [(self._activation(chunk.entry.activation), chunk) for chunk in chunks if chunk.entry is not None]
        rows = torch.cat([activation[chunk.start : chunk.stop] for activation, chunk in entries])
        return shared(rows.to(self.store.cache.device), self._ranks)

    def _shared_rows(self, count: int) -> torch.Tensor:
        """What the first rank shares with this one."""
        return shared(self.store.cache.new_empty(count, self._config.hidden_size, dtype=self.store.dtype), self._ranks)

    def _activation(self, data: memoryview) -> torch.Tensor:
        """View bytes as an activation `[position, hidden]`, without a copy."""
        dtype = TORCH_DTYPES[self._manifest.dtype]
        return torch.frombuffer(data, dtype=dtype).view(-1, self._config.hidden_size)

    @torch.inference_mode()
    def run_blocks(self, blocks: range, chunks: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
        """Run a part of the model, from tokens or an activation to an activation or tokens. Rank 0 has both."""
        rows, head = self.rows(chunks), self._config.num_hidden_layers + 1
        if blocks.stop > head:
            self.output_head.begin_masks(chunks)
        hidden = self._coming(activation, rows.count) if blocks.start else self.embed(rows)
        hidden = self.layers(max(blocks.start - 1, 0), min(blocks.stop, head) - 1, hidden, rows)
        if blocks.stop <= head:
            return StageResult(memoryview(hidden.contiguous().view(torch.uint8).flatten().cpu().numpy().data))
        return StageResult(NO_BYTES, self.output_head.choose(hidden, rows.sampled, chunks))

    def _coming(self, activation: memoryview, count: int) -> torch.Tensor:
        """The activation that another worker computed, as a copy, since bytes may lie at any address."""
        if self._manifest.shard:
            return self._shared_rows(count)
        return shared(self._activation(activation).to(self.store.cache.device, copy=True), self._ranks)

    def run_layer(self, partials: Sequence[LayerwiseRun]) -> None:
        """Run the next layer, the same one, of all these requests together. The embedding runs with the first."""
        layer, device = partials[0].done, self.store.cache.device
        for slab in slabs(partials, self._row_bytes):
            rows, parts = self.rows(slab.chunks), list(map(self._activation, slab.activations))
            hidden = shared(torch.cat(parts).to(device), self._ranks) if layer else self.embed(rows)
            hidden = self.layers(layer, layer + 1, hidden, rows)
            for part, result in zip(parts, torch.split_with_sizes(hidden, list(map(len, parts))), strict=True):
                part.copy_(result)
        for partial in partials:
            partial.done += 1
