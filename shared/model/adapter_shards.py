"""Which part of an adapter each of several ranks keeps. It follows from how the model is cut. Pure."""

from math import prod

from livescale.shared.messages.parameters import Manifest
from livescale.shared.model.block_layout import ITEM_BYTES
from livescale.shared.model.declaration.adapter import DOWN, UP
from livescale.shared.model.declaration.tensors import layer_parameters
from livescale.shared.model.packed.form import WEIGHT
from livescale.shared.model.sharding import ShardSlice, find_shard_slice


def adapter_slices(manifest: Manifest, shard: int, shards: int) -> dict[str, ShardSlice | None]:
    """The slice that rank `shard` has of each tensor of an adapter; None is all of it.

    Of a matrix that is cut by rows each rank has the same rows of B and all of A. Of one that is cut by columns it has
    the same columns of A and all of B: its product is added to those of the other ranks, as the matrix's own is.
    """
    config = manifest.config
    found: dict[str, ShardSlice | None] = {}
    for layer in range(config.num_hidden_layers):
        for name, _, cut in layer_parameters(config, layer):
            own = find_shard_slice(cut, config, shard, shards)
            stem = name.removesuffix(WEIGHT)
            found[stem + DOWN] = own if own is not None and own.dimension == 1 else None
            found[stem + UP] = own if own is not None and own.dimension == 0 else None
    return {tensor.name: found[tensor.name] for block in manifest.blocks for tensor in block.tensors}


def adapter_bytes(manifest: Manifest, shards: int) -> int:
    """The bytes of an adapter that each of so many ranks keeps."""
    if shards == 1:
        return manifest.size_bytes
    slices = adapter_slices(manifest, 0, shards)
    numbers = 0
    for block in manifest.blocks:
        for tensor in block.tensors:
            own, shape = slices[tensor.name], list(tensor.shape)
            if own is not None:
                shape[own.dimension] = own.stop - own.start
            numbers += prod(shape)
    return numbers * ITEM_BYTES[manifest.dtype]
