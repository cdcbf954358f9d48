"""A layer by the compiled kernels: attention is one call, and without other ranks the whole layer is one."""

from array import array
from collections.abc import Sequence
from copy import copy
from functools import cached_property

import torch

from livescale.services.worker.engine.adapters import Adapters
from livescale.services.worker.engine.kernels.variants import TYPES, Kernels, double_bits, find_compiled
from livescale.services.worker.engine.kv_store import KvStore
from livescale.services.worker.engine.layer import Layer
from livescale.services.worker.engine.matrices import CompiledGated, CompiledLinear
from livescale.services.worker.engine.norms import CompiledNorm
from livescale.services.worker.engine.rope import RopeTable
from livescale.services.worker.engine.rows import Rows
from livescale.services.worker.scheduling.batch import ScheduledChunk
from livescale.shared.messages.parameters import LayerKind, ModelConfig

RUN_NUMBERS = 4  # as kernels.h has them
WHOLE = 2
NO_ADAPTERS = 0, 0


class CompiledAttention:
    """Attention by the compiled kernels: rotation, writing into the KV cache and attending are one call a layer.

    It serves one model, for requests of up to `positions` tokens; `group` is query heads to a KV head, and `ropes` has
    the table of each layer.
    """

    def __init__(
        self,
        kernels: Kernels,
        store: KvStore,
        ropes: Sequence[RopeTable],
        group: int,
        positions: int,
        kinds: Sequence[LayerKind],
    ) -> None:
        compiled = find_compiled()
        assert compiled is not None
        self.attend = kernels.attend
        self.dtype = store.dtype
        self.type = TYPES[store.dtype_name]
        self._store = store
        self._ropes = ropes
        self._positions = positions
        self._run_rows = compiled.LAYER_ROWS
        _, _, kv_heads, slots, head_dim = store.cache.shape
        self.width = kv_heads * group * head_dim
        # `Attention` of kernels.h, of each layer: looked up once, as it takes longer than the call.
        shape = slots, kv_heads, group, head_dim, int(store.is_fp8)
        # A single part is keys and values.
        caches = [(layer[0].data_ptr(), layer[-1].data_ptr()) for layer in store.cache.unbind(0)]
        self.layers = [
            array("q", (*cache, *shape, rope.cosines.data_ptr(), rope.sines.data_ptr(), *numbers_of(kind), 0))
            for cache, rope, kind in zip(caches, ropes, kinds, strict=True)
        ]
        self.addresses = [layer.buffer_info()[0] for layer in self.layers]
        self._sinks: dict[int, torch.Tensor] = {}  # whose addresses are known there

    def take_sinks(self, layer: int, sinks: torch.Tensor) -> None:
        self._sinks[layer] = sinks.float()
        self.layers[layer][-1] = self._sinks[layer].data_ptr()

    def over(self, chunks: Sequence[ScheduledChunk]) -> "CompiledStep":
        """Prepare attention for `chunks`.

        Raises ValueError for chunks that the cache or the tables have no room for, because the kernels do not check.
        """
        # An array and no tensor, which would take longer to make than all that is in it.
        runs, rows = array("q"), 0
        for chunk in chunks:
            self._check(chunk)
            slot = chunk.blocks.start * self._store.block_tokens
            if chunk.whole:
                runs.extend((chunk.stop, slot, 0, WHOLE))
            for start in range(chunk.stop if chunk.whole else chunk.start, chunk.stop, self._run_rows):
                runs.extend((min(chunk.stop - start, self._run_rows), slot, start, int(chunk.decode)))
            rows += len(chunk.tokens)
        return CompiledStep(self, runs, rows)

    def _check(self, chunk: ScheduledChunk) -> None:
        room = min(self._positions, len(chunk.blocks) * self._store.block_tokens)
        is_in_cache = chunk.blocks.start >= 0 and chunk.blocks.stop <= self._store.blocks
        if not (is_in_cache and 0 <= chunk.start < chunk.stop <= room):
            raise ValueError(f"{chunk.request_id}: positions {chunk.start} .. {chunk.stop} are not in {chunk.blocks}")


def numbers_of(kind: LayerKind) -> tuple[int, ...]:
    """What the kernels must know of the attention of a kind of layers: two of these are the bits of a double."""
    return kind.window, *double_bits(kind.attention_scale, kind.score_cap)


class CompiledStep:
    """The attention of one step. `runs` has four numbers a run: rows, slot of position 0, first position, kind."""

    def __init__(self, attention: CompiledAttention, runs: "array[int]", rows: int) -> None:
        self._attention = attention
        self._numbers = runs
        self.runs = runs.buffer_info()[0], len(runs) // RUN_NUMBERS
        self._rows = rows

    @cached_property
    def _out(self) -> torch.Tensor:
        """The buffer for the result of attention, which every layer uses again."""
        return torch.zeros(self._rows, self._attention.width, dtype=self._attention.dtype)

    def __call__(self, layer: int, projected: torch.Tensor) -> torch.Tensor:
        attention, out = self._attention, self._out
        projected_and_out = projected.data_ptr(), projected.stride(0), out.data_ptr()
        attention.attend(attention.type, *projected_and_out, *self.runs, attention.addresses[layer])
        return out


class LayerMemory:
    """The buffers that all layers of a model share for their intermediate results. They are touched when made."""

    def __init__(self, config: ModelConfig, kernels: Kernels, attention: CompiledAttention) -> None:
        compiled = find_compiled()
        assert compiled is not None
        hidden, between, head = config.hidden_size, config.intermediate_size, config.head_dim
        attended = config.num_attention_heads * head
        projected = attended + 2 * config.num_key_value_heads * head
        # `Between` of kernels.h: normed, projected, attended, hidden, gate and up, gated.
        widths = hidden, projected, attended, hidden, 2 * between, between
        self._parts = [torch.empty(compiled.LAYER_ROWS, width, dtype=attention.dtype).zero_() for width in widths]
        self.addresses = [part.data_ptr() for part in self._parts]
        self.kernels = kernels
        self.attention = attention


class CompiledLayer:
    """`layer` as one call of a kernel, with the same bits. `numbers` tell the kernel where its parameters are.

    Next to nothing runs between its matrices, and their results stay in the CPU's cache.
    """

    def __init__(self, layer: Layer, numbers: Sequence[int], epsilon: float, memory: LayerMemory) -> None:
        self._layer = layer
        self._memory = memory  # lives as long as its addresses are known here
        self._run, self._type = memory.kernels.run_layer, memory.attention.type
        attention = memory.attention.layers[layer.index]
        self._numbers = array("q", (layer.index, *numbers, *attention, *memory.addresses))
        self._address = self._numbers.buffer_info()[0]
        self._epsilon = epsilon
        self._adapters: Adapters | None = None

    def adapted(self, adapters: Adapters) -> "CompiledLayer":
        """The same layer with what the adapters of rows add to its matrices."""
        made = copy(self)
        made._adapters = adapters
        return made

    def __call__(self, hidden: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Run the layer on `[row, hidden]`, in place."""
        step = rows.attend
        assert isinstance(step, CompiledStep)
        hidden = hidden.contiguous()
        adapters = NO_ADAPTERS if self._adapters is None else self._adapters.numbers
        self._run(self._type, self._address, hidden.data_ptr(), rows.count, *step.runs, *adapters, self._epsilon)
        return hidden


def in_one_call(layer: Layer, memory: LayerMemory) -> Layer | CompiledLayer:
    """Make `layer` one call of a kernel; return it unchanged where other ranks have a part of it, or where the kernel
    does not know all of its parts."""
    if layer.is_parallel:
        return layer
    match layer.parts:
        case (
            CompiledNorm(offset=0.0) as input_norm,
            CompiledLinear(numbers=qkv),
            CompiledLinear(numbers=output),
            CompiledNorm() as mlp_norm,
            CompiledGated(both=CompiledLinear(numbers=gate_up), activation="silu"),
            CompiledLinear(numbers=down),
        ):
            numbers = input_norm.address, *qkv, *output, mlp_norm.address, *gate_up, *down
            return CompiledLayer(layer, numbers, input_norm.epsilon, memory)
        case _:
            return layer
