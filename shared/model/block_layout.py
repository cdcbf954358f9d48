"""How a model's parameters are cut into blocks and packed. The layout follows from the configuration alone.

Tensors of a block lie one after the other at multiples of 64 bytes (a cache line, an AVX-512 register); gaps are zero.
In the layout `panels`, bfloat16 matrices lie as CPU kernels read them, so that a worker computes with them where they
arrived. Exceptions are matrices that do not fill whole panels, the embedding, which is looked up by row, and what
expands a latent, of which the engine makes other matrices. Quantized matrices lie in packed panels in either layout.
Where a checkpoint has one scale for many outputs, those of a panel share it: a panel then has one scale for a group of
inputs in place of 64, and kernels unpack it in a third of the time. A model that is cut for several ranks has the
blocks of the first rank, then those of the second, and so on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from msgspec import structs

from livescale.shared.messages.parameters import Block, DType, Layout, ModelConfig, Tensor
from livescale.shared.messages.quantization import Packing
from livescale.shared.model.declaration.rotation import head_orders
from livescale.shared.model.declaration.tensors import EXPANDING, LOOKED_UP, Shapes, model_parameters, own_dtype
from livescale.shared.model.packed.form import PANEL_OUTPUTS, WEIGHT, packed_bytes, packing_of
from livescale.shared.model.sharding import shard_config

ALIGNMENT = 64
PANEL_ROWS, PANEL_STEP = 64, 32  # a panel has so many rows, and a multiple of so many columns
ITEM_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2}


def share_scales(config: ModelConfig, shapes: Mapping[str, Shapes]) -> bool:
    """Whether no panel of a rank has outputs of two blocks of scales. `shapes` are the rank's, by block and tensor.

    Where all packed matrices fill whole panels, each is a part of a checkpoint's tensor that begins at one as well.
    """
    if config.quantization is None:
        return False
    rows = config.quantization.scale_rows
    if rows == 0:
        return True
    packed = (
        shape
        for tensors in shapes.values()
        for name, shape in tensors.items()
        if packing_of(config.quantization, name) is not None
    )
    fills = rows % PANEL_OUTPUTS == 0 and all(shape[-2] % PANEL_OUTPUTS == 0 for shape in packed)
    return fills and all(_keeps_blocks(order, rows) for order in head_orders(config).values())


def with_shared_scales(packing: Packing) -> Packing:
    """The packing of a matrix whose panels share their scales. Of integers few checkpoints have such."""
    return structs.replace(packing, scales="float32-panel") if packing.codes == "fp8" else packing


def _keeps_blocks(order: Sequence[int], rows: int) -> bool:
    """Whether heads in another order have the same outputs in each panel, or outputs of one block of scales alone."""
    stays = all(place // PANEL_OUTPUTS == one // PANEL_OUTPUTS for place, one in enumerate(order))
    return rows % len(order) == 0 or (len(order) % PANEL_OUTPUTS == 0 and stays)


@dataclass(frozen=True)
class BlockLayout:
    """The name, size and tensors of a block, before its bytes are known."""

    index: int
    name: str
    size_bytes: int
    tensors: tuple[Tensor, ...]

    def block(self, checksum: int) -> Block:
        return Block(
            index=self.index,
            name=self.name,
            size_bytes=self.size_bytes,
            checksum=checksum,
            tensors=list(self.tensors),
        )


def kv_item_bytes(config: ModelConfig, dtype: DType) -> int:
    """The bytes of a number in the KV cache of a model that is served in `dtype`."""
    return 1 if config.kv_cache_dtype == "fp8" else ITEM_BYTES[dtype]


def check_dtype(config: ModelConfig, dtype: DType) -> None:
    """Raises ValueError for a type in which the model is not served."""
    if config.quantization is not None and dtype != "bfloat16":
        raise ValueError(f"dtype is {dtype}, and quantized checkpoints are served in bfloat16; set dtype to bfloat16")


def block_layouts(
    config: ModelConfig, dtype: DType, shards: int = 1, layout: Layout = "plain"
) -> tuple[BlockLayout, ...]:
    """All blocks in order: embedding, layers 0 to L-1, final norm and head; first those of rank 0, then of rank 1 and
    on."""
    blocks = (block for shard in range(shards) for block in shard_layouts(config, dtype, shard, shards, layout))
    return tuple(replace(block, index=index) for index, block in enumerate(blocks))


def shard_layouts(
    config: ModelConfig, dtype: DType, shard: int, shards: int, layout: Layout = "plain"
) -> tuple[BlockLayout, ...]:
    """The blocks of rank `shard` out of `shards`, in order, counted from 0."""
    shapes = block_shapes(shard_config(config, shard, shards))
    rank = f" of rank {shard}" if shards > 1 else ""
    pack = partial(_pack, config, dtype=dtype, layout=layout, shares=share_scales(config, shapes))
    return tuple(pack(index, name + rank, shapes[name]) for index, name in enumerate(shapes))


def block_shapes(config: ModelConfig) -> dict[str, Shapes]:
    """The shape of each tensor, by block and by the tensor's name."""
    return {block: {one.name: one.shape for one in tensors} for block, tensors in model_parameters(config).items()}


def _pack(
    config: ModelConfig, index: int, name: str, shapes: Shapes, *, dtype: DType, layout: Layout, shares: bool
) -> BlockLayout:
    tensors = []
    end = 0
    for tensor, shape in shapes.items():
        packing = packing_of(config.quantization, tensor)
        if packing is not None and shares:
            packing = with_shared_scales(packing)
        own: Layout = layout if dtype == "bfloat16" and packing is None and _fills_panels(tensor, shape) else "plain"
        placed = Tensor(name=tensor, shape=shape, offset=end, layout=own, packing=packing, dtype=own_dtype(tensor))
        tensors.append(placed)
        end += -(-tensor_bytes(placed, dtype) // ALIGNMENT) * ALIGNMENT
    return BlockLayout(index=index, name=name, size_bytes=end, tensors=tuple(tensors))


def tensor_bytes(tensor: Tensor, dtype: DType) -> int:
    """The bytes that a tensor takes in its block."""
    if tensor.packing is None:
        return prod(tensor.shape) * ITEM_BYTES[tensor.dtype or dtype]
    *experts, outputs, inputs = tensor.shape
    return prod(experts) * packed_bytes(tensor.packing, outputs, inputs)


def _fills_panels(tensor: str, shape: list[int]) -> bool:
    is_multiplied = not (tensor.startswith(LOOKED_UP) or tensor.endswith(EXPANDING))
    is_matrix = len(shape) >= 2 and tensor.endswith(WEIGHT) and is_multiplied
    return is_matrix and shape[-2] % PANEL_ROWS == 0 and shape[-1] % PANEL_STEP == 0
