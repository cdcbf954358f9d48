"""Parameters as torch sees them: tensors over the arena's bytes, and matrices as the device's kernels want them."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch.nn.functional import linear, silu

from services.worker.engine.onednn import as_rows, joined, lay_out
from shared.block_layout import PANEL_ROWS
from shared.devices import CPU
from shared.links.contract import View
from shared.messages.parameters import Block, DType, Tensor

TORCH_DTYPES: dict[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Kernels for fewer rows are slower than those for this many.
MIN_ROWS = 4
# cuBLAS chooses its kernel, and with it the bits, by the number of rows: on a GPU matrices see so many, always. To read
# a matrix takes a GPU as long as to multiply it by 100 to 300 rows, so that few rows lose little by it, and many.
SLAB_ROWS = 128

Tensors = Mapping[str, torch.Tensor]


def block_tensors(block: Block, buffer: View, dtype: DType) -> dict[str, torch.Tensor]:
    """The tensors of `block` by name, as views of `buffer` (writable, at least the block's size); matrices that lie in
    panels as `[out / 64, in / 2, 64, 2]`."""
    if buffer.nbytes < block.size_bytes:
        raise ValueError(f"block {block.index} ({block.name}) has {block.size_bytes} bytes, its buffer {buffer.nbytes}")
    data = torch.frombuffer(buffer, dtype=torch.uint8) if isinstance(buffer, memoryview) else buffer.tensor
    tensors = {}
    for tensor in block.tensors:
        count = torch.Size(tensor.shape).numel() * TORCH_DTYPES[dtype].itemsize
        piece = data[tensor.offset : tensor.offset + count]
        tensors[tensor.name] = piece.view(TORCH_DTYPES[dtype]).view(_shape(tensor))
    return tensors


def _shape(tensor: Tensor) -> list[int]:
    if tensor.layout == "plain":
        return tensor.shape
    outputs, inputs = tensor.shape
    return [outputs // PANEL_ROWS, inputs // 2, PANEL_ROWS, 2]


class Linear(Protocol):
    """One or more matrices `[out, in]` with the same input as one."""

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows` `[row, in]` with zero rows added, as many as its kernel wants."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """`[row, in]` -> `[row, out]`."""

    def swish(self, rows: torch.Tensor) -> torch.Tensor:
        """SiLU of what this makes of `rows`."""

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """`residual` `[row, out]` plus what this makes of `rows`."""

    def times(self, rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """`factor` `[row, out]` times what this makes of `rows`."""


class PlainLinear:
    """The matrices where they are, by torch's own kernels: nothing of a GPU's memory is taken twice, unless they lie as
    a CPU wants them. Rows are multiplied a slab at a time."""

    def __init__(self, tensors: Tensors, *names: str) -> None:
        self._parts = [(as_rows(tensors[f"{name}.weight"]), tensors.get(f"{name}.bias")) for name in names]

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        return padded(rows)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        slabs = [self._slab(slab) for slab in torch.split(rows, SLAB_ROWS)]
        return slabs[0] if len(slabs) == 1 else torch.cat(slabs)

    def _slab(self, rows: torch.Tensor) -> torch.Tensor:
        results = [linear(rows, weight, bias) for weight, bias in self._parts]
        return results[0] if len(results) == 1 else torch.cat(results, dim=1)

    def swish(self, rows: torch.Tensor) -> torch.Tensor:
        return silu(self(rows))

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + self(rows)

    def times(self, rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return factor * self(rows)


class OneDnnLinear:
    """One or more matrices with the same input as one, laid out for oneDNN.

    Its rows have the same bits in every batch, and the layout serves every number of rows. `out` is rounded up to a
    multiple of `out_step` by features that are zero.
    """

    def __init__(self, tensors: Tensors, *names: str, out_step: int = 1) -> None:
        self._weights = [tensors[f"{name}.weight"] for name in names]
        biases = [tensors[f"{name}.bias"] for name in names if f"{name}.bias" in tensors]
        # Of what lies in panels nothing is missing to any step.
        missing = -sum(len(weight) for weight in self._weights if weight.dim() == 2) % out_step
        self.packed = lay_out(self._weights, missing)
        self._bias = joined(biases, missing) if biases else None

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        return padded(rows)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._unary(rows, "none")

    # What follows the product happens in its kernel, before rounding. Besides being fast, it keeps a row's bits with
    # several threads too: in torch's own SiLU they depend on where the batch is cut between two.

    def swish(self, rows: torch.Tensor) -> torch.Tensor:
        return self._unary(rows, "swish")

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._binary(rows, residual, "add")

    def times(self, rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return self._binary(rows, factor, "mul")

    def _unary(self, rows: torch.Tensor, operation: str) -> torch.Tensor:
        unary = torch.ops.mkldnn._linear_pointwise.default
        result: torch.Tensor = unary(rows, self.packed, self._bias, operation, [], "")
        return result

    def _binary(self, rows: torch.Tensor, other: torch.Tensor, operation: str) -> torch.Tensor:
        binary = torch.ops.mkldnn._linear_pointwise.binary
        result: torch.Tensor = binary(rows, other, self.packed, self._bias, operation)
        return result


def padded_count(rows: int, device: str) -> int:
    """How many rows the kernels of a `device` of this type are given for `rows`."""
    return max(rows, MIN_ROWS) if device == CPU else -(-rows // SLAB_ROWS) * SLAB_ROWS


def padded(rows: torch.Tensor) -> torch.Tensor:
    """`rows` `[row, n]` with zero rows added, as many as the kernels want."""
    missing = padded_count(len(rows), rows.device.type) - len(rows)
    return torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows
