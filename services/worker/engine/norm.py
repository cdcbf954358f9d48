"""RMSNorm."""

from typing import Protocol

import torch
from torch.nn.functional import rms_norm

from livescale.services.worker.engine.kernels.contract import TYPES, Kernels
from livescale.services.worker.engine.parameters import DTYPES


class Norm(Protocol):
    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[row, hidden]` -> as much."""


class TorchNorm:
    """By torch's kernels, on any device."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self._weight = weight
        self._epsilon = epsilon

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, self._weight.shape, self._weight, self._epsilon)


class CompiledNorm:
    """In one pass over each row."""

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
    return TorchNorm(weight, epsilon) if kernels is None else CompiledNorm(kernels, weight, epsilon)
