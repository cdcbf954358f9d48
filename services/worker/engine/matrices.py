"""A model's matrices, on the device that holds them: by torch's kernels (`parameters.py`) or by the compiled ones."""

from array import array
from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol

import torch

from livescale.services.worker.engine.kernels.variants import TYPES, Kernels
from livescale.services.worker.engine.parameters import (
    DTYPES,
    NOT_PACKED,
    Linear,
    PackedMatrix,
    Tensors,
    TorchLinear,
    stable_gelu,
    stable_silu,
)
from livescale.shared.messages.parameters import Activation, DType, Manifest, Tensor
from livescale.shared.model.block_layout import ITEM_BYTES, PANEL_ROWS, PANEL_STEP
from livescale.shared.model.declaration.tensors import EXPANDING

MOST_PARTS = 3  # as kernels.h has it
PART_NUMBERS = 7
LINEAR_NUMBERS = 3 + PART_NUMBERS * MOST_PARTS


class CompiledLinear:
    """A linear map by the compiled kernels: one or more matrices with the same input, as one.

    Matrices that arrived in panels are used where they lie; others are laid out in panels here.
    """

    def __init__(self, kernels: Kernels, tensors: Tensors, *names: str) -> None:
        if len(names) > MOST_PARTS:
            raise ValueError(f"one linear map has at most {MOST_PARTS} matrices, not {len(names)}")
        weights = [tensors[f"{name}.weight"] for name in names]
        self._multiply = kernels.multiply
        self._type = TYPES[number_type(weights[0])]
        self._panels = [in_panels(kernels, weight) for weight in weights]
        self._biases = [tensors.get(f"{name}.bias") for name in names]
        self.inputs, self.outputs = input_count(weights[0]), sum(map(output_count, weights))
        parts = [
            (panels.data_ptr(), 0 if bias is None else bias.data_ptr(), output_count(weight), *packing_numbers(weight))
            for panels, bias, weight in zip(self._panels, self._biases, weights, strict=True)
        ]
        missing = (0,) * (PART_NUMBERS * (MOST_PARTS - len(parts)))
        # `Linear` of kernels.h.
        self.numbers = (self.inputs, self.outputs, len(parts), *(number for part in parts for number in part), *missing)
        self._struct = array("q", self.numbers)
        self._address = self._struct.buffer_info()[0]

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows` as they are: the kernels take any number of them."""
        return rows

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._run(rows, 0)

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        residual = residual.contiguous()
        return self._run(rows, residual.data_ptr())

    def _run(self, rows: torch.Tensor, residual: int) -> torch.Tensor:
        rows = rows.contiguous()
        count = rows.shape[0]  # len() takes as long as the rest
        result = rows.new_empty(count, self.outputs)
        self._multiply(self._type, self._address, rows.data_ptr(), residual, result.data_ptr(), count)
        return result


def in_panels(kernels: Kernels, weight: torch.Tensor) -> torch.Tensor:
    """The panels of a matrix: the matrix itself where it arrived so."""
    if weight.dim() == 4 or isinstance(weight, PackedMatrix):
        return weight
    outputs, inputs = weight.shape
    weight = weight.contiguous()
    panels = weight.new_zeros(rounded_up(outputs, PANEL_ROWS) * rounded_up(inputs, PANEL_STEP))
    kernels.lay_out(TYPES[DTYPES[weight.dtype]], weight.data_ptr(), outputs, inputs, panels.data_ptr())
    return panels


def copied_matrices(manifest: Manifest, kernels: Kernels | None) -> list[Tensor]:
    """The matrices that are copied as they arrive, because the kernels, or torch's where None, want another layout."""
    return unpacked_matrices(manifest) if kernels is None else laid_out_matrices(manifest)


def laid_out_matrices(manifest: Manifest) -> list[Tensor]:
    """The matrices in layers and head that do not arrive in panels, and those of which the engine makes others: each is
    copied when it is here."""
    tensors = [tensor for block in manifest.blocks[1:] for tensor in block.tensors]
    return [
        tensor
        for tensor in tensors
        if len(tensor.shape) >= 2 and tensor.layout == "plain"
        if tensor.packing is None or tensor.name.endswith(EXPANDING)
        if not tensor.name.endswith(".bias")
    ]


def unpacked_matrices(manifest: Manifest) -> list[Tensor]:
    """Packed matrices, each of which torch's kernels need in bfloat16."""
    return [tensor for block in manifest.blocks for tensor in block.tensors if tensor.packing is not None]


def shapes_of(matrices: Sequence[Tensor]) -> list[str]:
    """Return the shapes of these matrices, such as 64x128, each once and sorted."""
    return sorted({"x".join(map(str, matrix.shape)) for matrix in matrices})


def bytes_of(matrices: Sequence[Tensor], dtype: DType) -> int:
    """Return the bytes that copies of these matrices take, without their padding."""
    return sum(prod(one.shape) * ITEM_BYTES["bfloat16" if one.packing else one.dtype or dtype] for one in matrices)


def output_count(weight: torch.Tensor) -> int:
    """The number of outputs of a matrix, in panels or not."""
    if isinstance(weight, PackedMatrix):
        return weight.outputs
    return int(weight.shape[0]) * (PANEL_ROWS if weight.dim() == 4 else 1)


def input_count(weight: torch.Tensor) -> int:
    """The number of inputs of a matrix, in panels or not."""
    if isinstance(weight, PackedMatrix):
        return weight.inputs
    return int(weight.shape[1]) * (2 if weight.dim() == 4 else 1)


def number_type(weight: torch.Tensor) -> DType:
    """The type of numbers that a matrix multiplies."""
    return "bfloat16" if isinstance(weight, PackedMatrix) else DTYPES[weight.dtype]


def packing_numbers(weight: torch.Tensor) -> tuple[int, int, int, int]:
    """Return the numbers that fill `Packing` of kernels.h."""
    return weight.numbers if isinstance(weight, PackedMatrix) else NOT_PACKED


def rounded_up(count: int, step: int) -> int:
    return -(-count // step) * step


def make_linear(tensors: Tensors, *names: str, kernels: Kernels | None = None) -> Linear:
    """Make matrices with the same input one linear map, by compiled kernels or, where `kernels` is None, torch's."""
    return TorchLinear(tensors, *names) if kernels is None else CompiledLinear(kernels, tensors, *names)


def linear_of(matrix: torch.Tensor, kernels: Kernels | None) -> Linear:
    """Make one matrix a linear map, without a bias."""
    return make_linear({"own.weight": matrix}, "own", kernels=kernels)


class Gated(Protocol):
    """SwiGLU or GeGLU: the product of the activation of one matrix's output and the output of another."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Compute it of each row: `[row, in]` -> `[row, out]`."""


class Activated:
    """GELU or ReLU of one matrix's output, by compiled kernels, or torch's where `kernels` is None."""

    def __init__(self, matrix: Linear, activation: Activation, kernels: Kernels | None) -> None:
        self._matrix = matrix
        self._activation = activation
        self._kernels = kernels

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        made = self._matrix(rows)
        if self._activation == "relu":
            return made.relu_()  # exact, so that all instructions agree
        if self._kernels is None or self._activation != "gelu":
            return stable_gelu(made, "none" if self._activation == "gelu" else "tanh")
        result = torch.empty_like(made)
        self._kernels.gelu(TYPES[DTYPES[made.dtype]], made.data_ptr(), result.data_ptr(), *made.shape)
        return result


class TorchGated:
    """SwiGLU or GeGLU by torch's kernels, on any device."""

    def __init__(self, gate: Linear, up: Linear, activation: Activation) -> None:
        self._gate = gate
        self._up = up
        self._activate = stable_silu if activation == "silu" else stable_gelu

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._activate(self._gate(rows)) * self._up(rows)


class CompiledGated:
    """SwiGLU or GeGLU by the compiled kernels: both matrices as one, and the rest in one pass over their output."""

    def __init__(self, kernels: Kernels, both: Linear, activation: Activation) -> None:
        self._gate = kernels.silu_times if activation == "silu" else kernels.gelu_times
        self.both = both
        self.activation = activation

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        made = self.both(rows)
        count, width = made.shape[0], made.shape[1] // 2
        result = made.new_empty(count, width)
        self._gate(TYPES[DTYPES[made.dtype]], made.data_ptr(), result.data_ptr(), count, width)
        return result


def make_gated(tensors: Tensors, gate: str, up: str, kernels: Kernels | None, activation: Activation = "silu") -> Gated:
    """SwiGLU or GeGLU by the compiled kernels, or torch's where `kernels` is None."""
    return join_gated(lambda *names: make_linear(tensors, *names, kernels=kernels), gate, up, kernels, activation)


def join_gated(
    linear: Callable[..., Linear], gate: str, up: str, kernels: Kernels | None, activation: Activation
) -> Gated:
    """The same of matrices that `linear` makes of their names."""
    if kernels is None:
        return TorchGated(linear(gate), linear(up), activation)
    return CompiledGated(kernels, linear(gate, up), activation)
