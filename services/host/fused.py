"""Reads an expert's matrix or bias out of a tensor that has those of all experts, as checkpoints of gpt-oss do."""

import numpy as np

from livescale.services.host.conversion import SAME, SERVED_BITS, STORED_BITS, are_finite, convert
from livescale.services.host.safetensors_files import AGAIN, StoredTensor, read_bytes
from livescale.shared.messages.parameters import DType
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.model.declaration.experts import Fused
from livescale.shared.model.sharding import ShardSlice


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
