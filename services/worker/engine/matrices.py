"""A model's matrices, for the device that they are on, by the kernels that there are."""

from typing import Protocol

import torch

from livescale.services.worker.engine.compiled_linear import CompiledLinear
from livescale.services.worker.engine.kernels.contract import TYPES, Kernels
from livescale.services.worker.engine.parameters import DTYPES, Linear, Tensors, TorchLinear, stable_silu


def make_linear(tensors: Tensors, *names: str, kernels: Kernels | None = None) -> Linear:
    """Matrices with the same input as one."""
    return TorchLinear(tensors, *names) if kernels is None else CompiledLinear(kernels, tensors, *names)


class Gated(Protocol):
    """SwiGLU: SiLU of the gate's matrix, times that of another."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """`[row, in]` -> `[row, out]`."""


class TorchGated:
    def __init__(self, gate: Linear, up: Linear) -> None:
        self._gate = gate
        self._up = up

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return stable_silu(self._gate(rows)) * self._up(rows)


class CompiledGated:
    """Both matrices as one, and the rest in one pass over what they make."""

    def __init__(self, kernels: Kernels, both: CompiledLinear) -> None:
        self._silu_times = kernels.silu_times
        self.both = both

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        made = self.both(rows)
        count, width = made.shape[0], made.shape[1] // 2
        result = made.new_empty(count, width)
        self._silu_times(TYPES[DTYPES[made.dtype]], made.data_ptr(), result.data_ptr(), count, width)
        return result


def make_gated(tensors: Tensors, gate: str, up: str, kernels: Kernels | None) -> Gated:
    if kernels is None:
        return TorchGated(TorchLinear(tensors, gate), TorchLinear(tensors, up))
    return CompiledGated(kernels, CompiledLinear(kernels, tensors, gate, up))
