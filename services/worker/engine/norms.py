"""Norms of rows: RMSNorm and LayerNorm, by the compiled kernels or torch's."""

from typing import Protocol

import torch
from torch.nn.functional import layer_norm, rms_norm

from livescale.services.worker.engine.kernels.variants import TYPES, Kernels
from livescale.services.worker.engine.parameters import DTYPES, Tensors
from livescale.shared.messages.parameters import ModelConfig


class Norm(Protocol):
    """A norm of each row, with the weights of one place in the model."""

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normalize each row: `[row, hidden]` -> `[row, hidden]`."""


class TorchNorm:
    """RMSNorm by torch's kernels, on any device."""

    def __init__(self, weight: torch.Tensor, epsilon: float, offset: float = 0.0) -> None:
        self._weight = weight.float() + offset if offset else weight
        self._epsilon = epsilon

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = rms_norm(hidden.to(self._weight.dtype), self._weight.shape, self._weight, self._epsilon)
        return normed.to(hidden.dtype)


class CompiledNorm:
    """RMSNorm by the compiled kernels, in one pass over each row."""

    def __init__(self, kernels: Kernels, weight: torch.Tensor, epsilon: float, offset: float = 0.0) -> None:
        self._rms_norm = kernels.rms_norm
        self._type = TYPES[DTYPES[weight.dtype]]
        self._weight = weight
        self.address, self._size = weight.data_ptr(), len(weight)
        self.epsilon, self.offset = epsilon, offset

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.contiguous()
        normed = torch.empty_like(hidden)
        numbers = hidden.data_ptr(), self.address, normed.data_ptr(), hidden.shape[0], self._size
        self._rms_norm(self._type, *numbers, self.epsilon, self.offset)
        return normed


def make_norm(weight: torch.Tensor, epsilon: float, kernels: Kernels | None, offset: float = 0.0) -> Norm:
    """RMSNorm by the compiled kernels, or torch's where `kernels` is None. `offset` is added to the weights."""
    if kernels is None:
        return TorchNorm(weight, epsilon, offset)
    return CompiledNorm(kernels, weight, epsilon, offset)


class TorchLayerNorm:
    """LayerNorm by torch's kernels, on any device. Each row is normalized by itself."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, epsilon: float) -> None:
        self._weight = weight
        self._bias = bias
        self._epsilon = epsilon

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return layer_norm(hidden, self._weight.shape, self._weight, self._bias, self._epsilon)


class CompiledLayerNorm:
    """LayerNorm of each row, with weights and biases, by the compiled kernels."""

    def __init__(self, kernels: Kernels, weight: torch.Tensor, bias: torch.Tensor, epsilon: float) -> None:
        self._layer_norm = kernels.layer_norm
        self._type = TYPES[DTYPES[weight.dtype]]
        self._parameters = weight, bias
        self._addresses = weight.data_ptr(), bias.data_ptr()
        self._epsilon = epsilon

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.contiguous()
        normed = torch.empty_like(hidden)
        weight, bias = self._addresses
        rows, size = hidden.shape
        numbers = hidden.data_ptr(), weight, bias, normed.data_ptr(), rows, size
        self._layer_norm(self._type, *numbers, self._epsilon)
        return normed


def norm_of(config: ModelConfig, tensors: Tensors, name: str, kernels: Kernels | None) -> Norm:
    """The norm of this name: LayerNorm where it has a bias or the model has LayerNorms without, else RMSNorm; one that
    does nothing where there is none."""
    weight, bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
    if weight is None:
        return as_it_is
    if config.has_layer_norms and not config.norm_biases:
        bias = torch.zeros_like(weight)
    if bias is None:
        return make_norm(weight, config.rms_norm_eps, kernels, config.norm_offset)
    if kernels is None:
        return TorchLayerNorm(weight, bias, config.rms_norm_eps)
    return CompiledLayerNorm(kernels, weight, bias, config.rms_norm_eps)


def as_it_is(hidden: torch.Tensor) -> torch.Tensor:
    """Return the rows unchanged: the norm of a place that has none."""
    return hidden
