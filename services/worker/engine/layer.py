"""One decoder layer of Llama and Qwen2 (which differ by the biases of q, k and v), and its RMSNorm."""

from typing import Protocol

import torch
from torch.nn.functional import rms_norm

from livescale.services.worker.engine.attention import Rows
from livescale.services.worker.engine.kernels.variants import TYPES, Kernels
from livescale.services.worker.engine.matrices import Gated, make_gated, make_linear
from livescale.services.worker.engine.parameters import DTYPES, Linear, Tensors
from livescale.services.worker.engine.tensor_parallel import Ranks, ResidualLinear, row_parallel
from livescale.shared.messages.parameters import ModelConfig


class Norm(Protocol):
    """RMSNorm of each row, with the weights of one place in the model."""

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normalize each row: `[row, hidden]` -> `[row, hidden]`."""


class TorchNorm:
    """RMSNorm by torch's kernels, on any device."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self._weight = weight
        self._epsilon = epsilon

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, self._weight.shape, self._weight, self._epsilon)


class CompiledNorm:
    """RMSNorm by the compiled kernels, in one pass over each row."""

    def __init__(self, kernels: Kernels, weight: torch.Tensor, epsilon: float) -> None:
        self._rms_norm = kernels.rms_norm
        self._type = TYPES[DTYPES[weight.dtype]]
        self._weight = weight
        self.address, self._size = weight.data_ptr(), len(weight)
        self.epsilon = epsilon

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.contiguous()
        normed = torch.empty_like(hidden)
        numbers = hidden.data_ptr(), self.address, normed.data_ptr(), hidden.shape[0], self._size
        self._rms_norm(self._type, *numbers, self.epsilon)
        return normed


def make_norm(weight: torch.Tensor, epsilon: float, kernels: Kernels | None) -> Norm:
    """RMSNorm by the compiled kernels, or torch's where `kernels` is None."""
    return TorchNorm(weight, epsilon) if kernels is None else CompiledNorm(kernels, weight, epsilon)


class Layer:
    """Decoder layer `index`, made of the tensors of its block."""

    def __init__(
        self, config: ModelConfig, index: int, tensors: Tensors, kernels: Kernels | None, ranks: Ranks | None
    ) -> None:
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        self.index = index
        self._input_norm = make_norm(tensors[f"{prefix}.input_layernorm.weight"], config.rms_norm_eps, kernels)
        projections = (f"{attention}.{name}_proj" for name in "qkv")
        self._qkv = make_linear(tensors, *projections, kernels=kernels)
        self._output = row_parallel(make_linear(tensors, f"{attention}.o_proj", kernels=kernels), ranks)
        self._mlp_norm = make_norm(tensors[f"{prefix}.post_attention_layernorm.weight"], config.rms_norm_eps, kernels)
        self._gated = make_gated(tensors, f"{mlp}.gate_proj", f"{mlp}.up_proj", kernels)
        self._down = row_parallel(make_linear(tensors, f"{mlp}.down_proj", kernels=kernels), ranks)

    @property
    def parts(self) -> tuple[Norm, Linear, ResidualLinear, Norm, Gated, ResidualLinear]:
        """The layer's parts in the order in which rows pass them; attention stands between the second and the third."""
        return self._input_norm, self._qkv, self._output, self._mlp_norm, self._gated, self._down

    def __call__(self, hidden: torch.Tensor, rows: Rows) -> torch.Tensor:
        """`[row, hidden]` -> `[row, hidden]`, padding included. Stores keys and values in the KV cache."""
        return self.finish(rows.attend(self.index, self.project(hidden)), hidden)

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[row, hidden]` -> queries, keys and values `[row, feature]`, without their rotation."""
        return self._qkv(self._input_norm(hidden))

    def finish(self, attended: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """What each row gathered, `[row, query_head * head_dim]`, and the layer's input `hidden` -> `[row, hidden]`."""
        hidden = self._output.plus(attended, hidden)
        return self._down.plus(self._gated(self._mlp_norm(hidden)), hidden)
