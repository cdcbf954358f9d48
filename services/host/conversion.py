"""Numbers of a checkpoint in the type and the order that they are served in, as torch converts them, bit for bit.

They are handled as their bits, because numpy has no bfloat16. torch itself would take 2 s and 0.6 GB to import, which a
host needs for nothing else where there is no GPU. The order differs where a checkpoint has matrices `[out, in]` as
`[in, out]`, as GPT-2's do, or among those of all experts, as gpt-oss'; and where they are served in panels, as kernels
for CPUs read them. A panel is 64 rows; of these each pair of columns lies together, row after row.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from livescale.services.host.safetensors_files import (
    AGAIN,
    StoredDType,
    StoredTensor,
    open_tensors,
    read_bytes,
    read_pieces,
)
from livescale.shared.messages.parameters import DType
from livescale.shared.model.block_layout import PANEL_ROWS
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.model.declaration.experts import Fused
from livescale.shared.model.declaration.tensors import Source
from livescale.shared.model.sharding import ShardSlice

Bits = NDArray[np.unsignedinteger[Any]]

STORED_BITS: dict[StoredDType, type[np.unsignedinteger[Any]]] = {"F32": np.uint32, "BF16": np.uint16, "F16": np.uint16}
SERVED_BITS: dict[DType, type[np.unsignedinteger[Any]]] = {"float32": np.uint32, "bfloat16": np.uint16}
SAME: dict[DType, StoredDType] = {"float32": "F32", "bfloat16": "BF16"}
INFINITY: dict[StoredDType, int] = {"F32": 0x7F80_0000, "BF16": 0x7F80, "F16": 0x7C00}
STRETCH = 1 << 18  # numbers at a time, which stay in the processor's cache from one step to the next

Matrix = NDArray[np.uint16]


def convert(bits: Bits, stored: StoredDType, dtype: DType, into: Bits) -> None:
    """Fill `into` with these numbers in `dtype`, to the nearest, ties to even. They are finite.

    What is too large for bfloat16 becomes infinite.
    """
    for start in range(0, len(bits), STRETCH):
        piece, target = bits[start : start + STRETCH], into[start : start + STRETCH]
        if stored == SAME[dtype]:
            target[:] = piece
        elif stored == "F16":
            np.take(_halves(dtype), piece, out=target, mode="clip")  # no index is outside, and this mode is the fastest
        elif stored == "BF16":
            np.left_shift(piece, 16, out=target, dtype=np.uint32)
        else:
            target[:] = _round(piece)


def are_finite(bits: Bits, stored: StoredDType) -> bool:
    """Whether none of these numbers is NaN or infinite."""
    infinity = INFINITY[stored]
    negative = infinity | 1 << 8 * bits.itemsize - 1
    for start in range(0, len(bits), STRETCH):
        piece = bits[start : start + STRETCH]
        # With a sign the greatest bits are those of a positive number, without one those of a negative one.
        if piece.view(np.int32 if bits.itemsize == 4 else np.int16).max() >= infinity or piece.max() >= negative:
            return False
    return True


def _round(bits: Bits) -> Bits:
    """float32 to bfloat16."""
    rounded = np.right_shift(bits, 16)
    rounded &= 1
    rounded += bits
    rounded += 0x7FFF
    rounded >>= 16
    return rounded


@cache
def _halves(dtype: DType) -> Bits:
    """Every number of float16 in `dtype`, by its bits."""
    exact = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    return exact if dtype == "float32" else _round(exact).astype(np.uint16)


def read_transposed(
    stored: StoredTensor, source: Source, cut: ShardSlice | None, into: memoryview, dtype: DType
) -> None:
    """Fill `into` with the part `cut` of the matrix of this `source`, a piece of the tensor `stored` after the other.

    Raises CheckpointError where the file cannot be read or holds values that are not finite.
    """
    outputs = range(source.start, source.start + source.rows)
    if cut is not None and cut.dimension == 0:
        outputs = outputs[cut.start : cut.stop]
    elif cut is not None:
        stored = stored.rows(cut.start, cut.stop)
    target = np.frombuffer(into, SERVED_BITS[dtype]).reshape(len(outputs), stored.shape[0])
    finite, first = True, 0
    with open_tensors(stored.file) as stream:
        for piece in read_pieces(stored, stream):
            values = np.frombuffer(piece, STORED_BITS[stored.dtype]).reshape(-1, stored.shape[1])
            own = np.ascontiguousarray(values[:, outputs.start : outputs.stop].T)
            converted = np.empty(own.size, SERVED_BITS[dtype])
            convert(own.reshape(-1), stored.dtype, dtype, converted)
            finite = finite and are_finite(own.reshape(-1), stored.dtype) and are_finite(converted, SAME[dtype])
            target[:, first : first + len(values)] = converted.reshape(own.shape)
            first += len(values)
    if not finite:
        raise CheckpointError(f"{stored.file}: {stored.name} holds NaN or infinity in {dtype}; {AGAIN}")


def read_fused(stored: StoredTensor, fused: Fused, cut: ShardSlice | None, into: memoryview, dtype: DType) -> None:
    """Fill `into` with the part `cut` of a matrix `[out, in]`, which is stored as `[in, out]`, or of a bias.

    Raises CheckpointError where the file cannot be read or holds values that are not finite.
    """
    one = stored.rows(fused.expert, fused.expert + 1)
    values = read_bytes(one).view(STORED_BITS[stored.dtype]).reshape(one.shape[1:])
    own = values[..., fused.first :: fused.step].T
    if cut is not None:
        own = own[cut.start : cut.stop] if cut.dimension == 0 else own[:, cut.start : cut.stop]
    flat, target = np.ascontiguousarray(own).reshape(-1), np.frombuffer(into, SERVED_BITS[dtype])
    convert(flat, stored.dtype, dtype, target)
    if not (are_finite(flat, stored.dtype) and are_finite(target, SAME[dtype])):
        raise CheckpointError(f"{stored.file}: {stored.name} holds NaN or infinity in {dtype}; {AGAIN}")


def to_panels(matrix: Matrix) -> Matrix:
    """A matrix `[out, in]` as panels `[out / 64, in / 2, 64, 2]`."""
    rows, columns = matrix.shape
    pairs = matrix.view(np.uint32).reshape(rows // PANEL_ROWS, PANEL_ROWS, columns // 2)
    panels = np.ascontiguousarray(pairs.swapaxes(1, 2))
    return panels.view(np.uint16).reshape(-1, columns // 2, PANEL_ROWS, 2)


def lay_in_panels(matrix: Matrix) -> None:
    """Rearrange a matrix in its own memory, panel by panel, so that each stays in the processor's cache meanwhile."""
    for first in range(0, len(matrix), PANEL_ROWS):
        panel = matrix[first : first + PANEL_ROWS]
        panel[:] = to_panels(panel).reshape(panel.shape)
