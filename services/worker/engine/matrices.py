"""A model's matrices, for the device that they are on, by the kernels that there are."""

from typing import Protocol

import torch

from services.worker.engine.compiled_linear import CompiledLinear
from services.worker.engine.kernels.contract import Kernels
from services.worker.engine.parameters import Linear, OneDnnLinear, PlainLinear, Tensors


def make_linear(tensors: Tensors, *names: str, out_step: int = 1, kernels: Kernels | None = None) -> Linear:
    """Matrices with the same input as one."""
    if tensors[f"{names[0]}.weight"].is_cuda:
        return PlainLinear(tensors, *names)
    if kernels is not None:
        return CompiledLinear(kernels, tensors, *names, out_step=out_step)
    return OneDnnLinear(tensors, *names, out_step=out_step)


class Gated(Protocol):
    """SwiGLU: SiLU of the gate's matrix, times that of another."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """`[row, in]` -> `[row, out]`."""


class TorchGated:
    """What follows a product happens in its kernel."""

    def __init__(self, gate: Linear, up: Linear) -> None:
        self._gate = gate
        self._up = up

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._up.times(rows, self._gate.swish(rows))


class CompiledGated:
    """Both matrices as one, and the rest in one pass over what they make."""

    def __init__(self, kernels: Kernels, both: Linear) -> None:
        self._silu_times = kernels.silu_times
        self.both = both

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        made = self.both(rows)
        count, width = made.shape[0], made.shape[1] // 2
        result = made.new_empty(count, width)
        self._silu_times(made.data_ptr(), result.data_ptr(), count, width)
        return result


def make_gated(tensors: Tensors, gate: str, up: str, kernels: Kernels | None) -> Gated:
    if kernels is None:
        return TorchGated(make_linear(tensors, gate), make_linear(tensors, up))
    return CompiledGated(kernels, make_linear(tensors, gate, up, kernels=kernels))
