"""A model's parameters as the engine's kernels want them, and matrices by torch's kernels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch.nn.functional import gelu, linear, pad, silu

from livescale.shared.links.contract import View
from livescale.shared.memory.devices import CPU
from livescale.shared.messages.parameters import Block, DType, Tensor
from livescale.shared.messages.quantization import Codes, Packing, ScaleType
from livescale.shared.model.block_layout import PANEL_ROWS, tensor_bytes
from livescale.shared.model.packed.form import (
    CODE_BITS,
    MIDDLES,
    PANEL_OUTPUTS,
    group_count,
    group_of,
    panel_parts,
    scales_of_group,
)
from livescale.shared.model.sharding import ShardSlice

# As kernels.h numbers them.
CODES: dict[Codes, int] = {"int4": 1, "int8": 2, "fp8": 3, "fp4": 4}
SCALES: dict[ScaleType, int] = {"bfloat16": 0, "float32": 1, "float16": 2, "e8m0": 3, "float32-panel": 4}
SCALE_TYPES: dict[ScaleType, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float16": torch.float16,
    "e8m0": torch.float8_e8m0fnu,
    "float32-panel": torch.float32,
}
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
NOT_PACKED = (0, 0, 0, 0)
LANES = 16  # of the kernels' words

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


class PackedMatrix(torch.Tensor):
    """The bytes of a matrix `[outputs, inputs]` in packed panels, or of one for each of several `experts`."""

    packing: Packing
    outputs: int
    inputs: int
    experts: int | None

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """Return the numbers that fill `Packing` of kernels.h."""
        packing = self.packing
        return CODES[packing.codes], group_of(packing, self.inputs), SCALES[packing.scales], int(packing.zeros)


def packed_matrix(piece: torch.Tensor, tensor: Tensor) -> PackedMatrix:
    """View the bytes of a block's tensor as the matrix that they are."""
    assert tensor.packing is not None
    made = piece.as_subclass(PackedMatrix)
    made.packing = tensor.packing
    *experts, made.outputs, made.inputs = tensor.shape
    made.experts = experts[0] if experts else None
    return made


def matrices_of(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """The matrix of each expert, of a tensor that holds those of all."""
    if not isinstance(tensor, PackedMatrix):
        return tensor.unbind(0)
    assert tensor.experts is not None
    return [_same_form(piece, tensor) for piece in tensor.as_subclass(torch.Tensor).view(tensor.experts, -1)]


def _same_form(piece: torch.Tensor, like: PackedMatrix) -> PackedMatrix:
    """View the bytes of one expert as the matrix that they are."""
    made = piece.as_subclass(PackedMatrix)
    made.packing, made.outputs, made.inputs, made.experts = like.packing, like.outputs, like.inputs, None
    return made


def unpacked(tensor: torch.Tensor) -> torch.Tensor:
    """A packed matrix in bfloat16, `[output, input]`, on its device; any other tensor as it is. Those of several
    experts are `[expert, output, input]`."""
    if not isinstance(tensor, PackedMatrix):
        return tensor
    if tensor.experts is not None:
        return torch.stack([unpacked(one) for one in matrices_of(tensor)])
    packing, outputs, inputs = tensor.packing, tensor.outputs, tensor.inputs
    parts = panel_parts(packing, inputs)
    panels = tensor.as_subclass(torch.Tensor).view(-1, sum(parts))
    scales, zeros, codes = torch.split_with_sizes(panels, parts, dim=1)
    groups = group_count(packing, inputs)
    each = scales_of_group(packing)
    stored = scales.contiguous().view(SCALE_TYPES[packing.scales])[:, : groups * each].view(-1, groups, each)
    scale = by_output(stored.expand(-1, -1, PANEL_OUTPUTS)).float()
    numbers = _codes(codes, CODE_BITS[packing.codes])[:, :inputs].contiguous()
    if packing.codes == "fp4":
        wide = torch.tensor(FP4_VALUES, device=tensor.device)[numbers.long()]
    elif packing.codes == "fp8":
        wide = numbers.view(torch.float8_e4m3fn).float()
    elif packing.zeros:
        wide = numbers.float() - _each_input(by_output(zeros.reshape(-1, groups, PANEL_OUTPUTS)).float(), tensor)
    else:
        wide = numbers.float() - MIDDLES[packing.codes]
    return (wide * _each_input(scale, tensor))[:outputs].bfloat16()


def out_of_panels(weight: torch.Tensor) -> torch.Tensor:
    """A matrix in panels as `[out, in]`; any other tensor as it is."""
    return weight.transpose(1, 2).flatten(2).flatten(0, 1) if weight.dim() == 4 else weight


def by_output(values: torch.Tensor) -> torch.Tensor:
    """`[panel, group, output]` as `[output, group]`."""
    return values.transpose(1, 2).reshape(-1, values.shape[1])


def _each_input(values: torch.Tensor, tensor: PackedMatrix) -> torch.Tensor:
    """What each group has, for each of its inputs."""
    return values.repeat_interleave(group_of(tensor.packing, tensor.inputs), dim=1)[:, : tensor.inputs]


def _codes(words: torch.Tensor, bits: int) -> torch.Tensor:
    """The words of all panels as codes `[output, input]`."""
    panels = len(words)
    lanes = words.reshape(panels, -1, LANES, 4)
    if bits == 4:
        lanes = torch.stack((lanes & 15, lanes >> 4), dim=-1).flatten(3)
    pairs = lanes.transpose(2, 3).reshape(panels, -1, PANEL_OUTPUTS, 2)
    return pairs.transpose(1, 2).reshape(panels * PANEL_OUTPUTS, -1)


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
