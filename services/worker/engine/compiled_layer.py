"""A layer as one call of a compiled kernel: next to nothing is between its matrices, and what they make stays in the
CPU's cache."""

from array import array
from collections.abc import Sequence

import torch

from livescale.services.worker.engine.compiled_attention import CompiledAttention, CompiledStep
from livescale.services.worker.engine.compiled_linear import CompiledLinear
from livescale.services.worker.engine.kernels.contract import Kernels, find_compiled
from livescale.services.worker.engine.layer import Layer
from livescale.services.worker.engine.matrices import CompiledGated
from livescale.services.worker.engine.norm import CompiledNorm
from livescale.services.worker.engine.rows import Rows
from livescale.shared.messages.parameters import ModelConfig


class LayerMemory:
    """What the layers of a model have in common: where they put what they make of some rows, one layer after the
    other. It is touched."""

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
    """`layer` with the same bits, of whose parameters `numbers` tell the kernel."""

    def __init__(self, layer: Layer, numbers: Sequence[int], epsilon: float, memory: LayerMemory) -> None:
        self._layer = layer
        self._memory = memory  # lives as long as its addresses are known here
        self._run, self._type = memory.kernels.run_layer, memory.attention.type
        self._numbers = array("q", (*numbers, *memory.attention.layers[layer.index], *memory.addresses))
        self._address = self._numbers.buffer_info()[0]
        self._epsilon = epsilon

    def __call__(self, hidden: torch.Tensor, rows: Rows) -> torch.Tensor:
        """`[row, hidden]` -> `[row, hidden]`, where they are."""
        step = rows.attend
        assert isinstance(step, CompiledStep)
        hidden = hidden.contiguous()
        self._run(self._type, self._address, hidden.data_ptr(), rows.count, *step.runs, self._epsilon)
        return hidden


def in_one_call(layer: Layer, memory: LayerMemory) -> Layer | CompiledLayer:
    """`layer` itself where other ranks have a part of it."""
    match layer.parts:
        case (
            CompiledNorm() as input_norm,
            CompiledLinear(numbers=qkv),
            CompiledLinear(numbers=output),
            CompiledNorm() as mlp_norm,
            CompiledGated(both=CompiledLinear(numbers=gate_up)),
            CompiledLinear(numbers=down),
        ):
            numbers = input_norm.address, *qkv, *output, mlp_norm.address, *gate_up, *down
            return CompiledLayer(layer, numbers, input_norm.epsilon, memory)
        case _:
            return layer
