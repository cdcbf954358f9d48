"""A model's parameters as the engine's kernels want them, and matrices by torch's kernels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch.nn.functional import gelu, linear, pad, silu

from livescale.services.worker.engine.packed import packed_matrix
from livescale.shared.links.contract import View
from livescale.shared.memory.devices import CPU
from livescale.shared.messages.parameters import Block, DType, Tensor
from livescale.shared.model.block_layout import PANEL_ROWS, tensor_bytes
from livescale.shared.model.sharding import ShardSlice

TORCH_DTYPES: dict[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DTYPES: dict[torch.dtype, DType] = {dtype: name for name, dtype in TORCH_DTYPES.items()}
# Libraries choose their kernel, and with it the bits, by the number of rows. So torch's matrices see the same number of
# rows at every call, a slab of them. To read a matrix takes a GPU as long as to multiply it by 100 to 300 rows, and a
# CPU core as long as by 10 to 20.
GPU_SLAB_ROWS, CPU_SLAB_ROWS = 128, 16
# Where rows lie in a slab decides the bits of products with fewer than 12 outputs (float32, MKL on a CPU of AMD's).
CPU_LEAST_OUTPUTS = 32
WIDENED_PANELS = 64  # that are in float32 at a time

Tensors = Mapping[str, torch.Tensor]


def block_tensors(block: Block, buffer: View, dtype: DType) -> dict[str, torch.Tensor]:
    """The tensors of `block` by name, as views of `buffer`, which is writable and has at least the block's size.

    Matrices in panels are `[out / 64, in / 2, 64, 2]`, those of experts one after the other; packed ones are
    `PackedMatrix`. Raises ValueError for a buffer that is too small.
    """
    if buffer.nbytes < block.size_bytes:
        raise ValueError(f"block {block.index} ({block.name}) has {block.size_bytes} bytes, its buffer {buffer.nbytes}")
    data = torch.frombuffer(buffer, dtype=torch.uint8) if isinstance(buffer, memoryview) else buffer.tensor
    tensors: dict[str, torch.Tensor] = {}
    for tensor in block.tensors:
        piece = data[tensor.offset : tensor.offset + tensor_bytes(tensor, dtype)]
        if tensor.packing is None:
            tensors[tensor.name] = piece.view(TORCH_DTYPES[tensor.dtype or dtype]).view(_shape(tensor))
        else:
            tensors[tensor.name] = packed_matrix(piece, tensor)
    return tensors


def part_of(tensor: torch.Tensor, own: ShardSlice | None) -> torch.Tensor:
    """A rank's part of a tensor, as a view; None is all of it."""
    return tensor if own is None else tensor.narrow(own.dimension, own.start, own.stop - own.start)


def _shape(tensor: Tensor) -> list[int]:
    if tensor.layout == "plain":
        return tensor.shape
    *experts, outputs, inputs = tensor.shape
    return [*experts, outputs // PANEL_ROWS, inputs // 2, PANEL_ROWS, 2]


class Linear(Protocol):
    """One or more matrices `[out, in]` with the same input, as one."""

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows` `[row, in]` with as many zero rows added as the kernel wants."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply each row by the matrix: `[row, in]` -> `[row, out]`."""

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """`residual` `[row, out]` plus the product of `rows` `[row, in]`."""


class TorchLinear:
    """Matrices where they lie, by torch's kernels on any device. These see a slab of rows at a time."""

    def __init__(self, tensors: Tensors, *names: str) -> None:
        self._parts = [(tensors[f"{name}.weight"], tensors.get(f"{name}.bias")) for name in names]

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        return padded(rows)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """`[row, in]` -> `[row, out]`. Rows fill whole slabs."""
        results = [multiply_part(rows, weight, bias) for weight, bias in self._parts]
        return results[0] if len(results) == 1 else torch.cat(results, dim=1)

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + self(rows)


def multiply_part(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`rows` `[row, in]`, which fill whole slabs, times one matrix, plain or in panels, plus its bias: `[row, out]`."""
    slabs = torch.split(rows, slab_rows(rows.device.type))
    if weight.dim() == 2:
        outputs = len(weight)
        if outputs >= CPU_LEAST_OUTPUTS or rows.is_cuda:
            return joined([linear(slab, weight, bias) for slab in slabs])
        wide = pad(weight, (0, 0, 0, CPU_LEAST_OUTPUTS - outputs))
        product = joined([linear(slab, wide, None)[:, :outputs] for slab in slabs])
    else:
        product = multiply_panels(slabs, weight)
    return product if bias is None else product + bias


def multiply_panels(slabs: Sequence[torch.Tensor], panels: torch.Tensor) -> torch.Tensor:
    """Slabs of rows `[row, in]` times a matrix in panels `[out / 64, in / 2, 64, 2]`, where it lies: `[row, out]`.

    A panel is a matrix `[in / 2, 128]` whose columns belong to even and odd inputs in turn. Even and odd inputs are
    multiplied with all of its columns, and half of what comes of each is used.
    """
    halves = [torch.cat((rows[:, 0::2], rows[:, 1::2])) for rows in slabs]
    matrices = panels.flatten(2)
    if not panels.is_cuda and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        # Torch's own kernels for batches of bfloat16 matrices are 16 times slower than those for float32. All slabs use
        # what is widened, as that takes longer than to multiply a slab.
        halves = [half.float() for half in halves]
        parts = [
            [torch.matmul(half, wide) for half in halves]
            for wide in (part.float() for part in torch.split(matrices, WIDENED_PANELS))
        ]
        products = [torch.cat(slab) for slab in zip(*parts, strict=True)]
    else:
        products = [torch.matmul(half, matrices) for half in halves]
    return joined([join_halves(product, panels.dtype) for product in products])


def joined(slabs: list[torch.Tensor]) -> torch.Tensor:
    """Slabs of rows as one matrix; a single one is not copied."""
    return slabs[0] if len(slabs) == 1 else torch.cat(slabs)


def join_halves(products: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Products `[panel, 2 * row, 128]` of even inputs, then of odd ones, as outputs `[row, out]` of this type."""
    count = products.shape[1] // 2
    even, odd = products[:, :count, 0::2], products[:, count:, 1::2]
    return (even + odd).to(dtype).transpose(0, 1).reshape(count, -1)


def stable_silu(rows: torch.Tensor) -> torch.Tensor:
    """SiLU of `[row, n]`, on a CPU row by row.

    Torch computes the last numbers of a tensor, and of each thread's share, by other instructions with other bits.
    """
    return row_by_row(silu, rows)


def row_by_row(compute: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """Compute each number of `[row, n]`, on a CPU in calls of one row."""
    return compute(rows) if rows.is_cuda else torch.stack([compute(row) for row in rows])


def stable_gelu(rows: torch.Tensor, approximate: str = "tanh") -> torch.Tensor:
    """GELU of `[row, n]` by its approximation with a tangent, or "none", on a CPU row by row for the same reason."""
    if rows.is_cuda:
        return gelu(rows, approximate=approximate)
    return torch.stack([gelu(row, approximate=approximate) for row in rows])


def slab_rows(device: str) -> int:
    """The number of rows that torch's kernels see at a time on this type of `device`."""
    return CPU_SLAB_ROWS if device == CPU else GPU_SLAB_ROWS


def padded_count(rows: int, device: str) -> int:
    """The number of rows in the slabs that hold `rows` rows."""
    return -(-rows // slab_rows(device)) * slab_rows(device)


def padded(rows: torch.Tensor) -> torch.Tensor:
    """`rows` `[row, n]` with zero rows added, up to whole slabs."""
    missing = padded_count(len(rows), rows.device.type) - len(rows)
    return pad(rows, (0, 0, 0, missing)) if missing > 0 else rows
