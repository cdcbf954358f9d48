"""Reads matrices `[out, in]` that a checkpoint has as `[in, out]`, as GPT-2's do, or among those of all experts, as
gpt-oss'."""

import numpy as np

from livescale.services.host.conversion import SAME, SERVED_BITS, STORED_BITS, are_finite, convert
from livescale.services.host.safetensors_files import AGAIN, StoredTensor, open_tensors, read_bytes, read_pieces
from livescale.shared.messages.parameters import DType
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.model.declaration.experts import Fused
from livescale.shared.model.declaration.source import Source
from livescale.shared.model.sharding import ShardSlice


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
