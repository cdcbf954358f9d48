"""How a model's parameters are cut into blocks and packed. The layout follows from the configuration alone.

Tensors of a block lie one after the other at multiples of 64 bytes (a cache line, an AVX-512 register); gaps are zero.
Matrices with the same input are adjacent (q, k, v; gate, up), so that they can be one matrix. In the layout `panels`,
bfloat16 matrices lie as CPU kernels read them, so that a worker computes with them where they arrived. Exceptions are
matrices that do not fill whole panels, and the embedding, which is looked up by row. A model that is cut for several
ranks has the blocks of the first rank, then those of the second, and so on.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from livescale.shared.messages.parameters import Block, DType, Layout, ModelConfig, Tensor
from livescale.shared.model.sharding import shard_config

ALIGNMENT = 64
PANEL_ROWS, PANEL_STEP = 64, 32  # a panel has so many rows, and a multiple of so many columns
EMBEDDING = "model.embed_tokens.weight"
ITEM_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2}

Shapes = dict[str, list[int]]


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
    return tuple(_pack(index, name + rank, shapes[name], dtype, layout) for index, name in enumerate(shapes))


def block_shapes(config: ModelConfig) -> dict[str, Shapes]:
    """The shape of each tensor, by block and by the tensor's name in the checkpoint."""
    return dict(_blocks(config))


def _blocks(config: ModelConfig) -> Iterator[tuple[str, Shapes]]:
    vocabulary = [config.vocab_size, config.hidden_size]
    yield "embedding", {EMBEDDING: vocabulary}
    for layer in range(config.num_hidden_layers):
        yield f"layer-{layer}", _layer(config, f"model.layers.{layer}.")
    head = {} if config.tie_word_embeddings else {"lm_head.weight": vocabulary}
    yield "head", {"model.norm.weight": [config.hidden_size], **head}


def _layer(config: ModelConfig, prefix: str) -> Shapes:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    q = config.num_attention_heads * config.head_dim
    kv = config.num_key_value_heads * config.head_dim
    biases = {"self_attn.q_proj.bias": [q], "self_attn.k_proj.bias": [kv], "self_attn.v_proj.bias": [kv]}
    shapes = {
        "input_layernorm.weight": [hidden],
        "self_attn.q_proj.weight": [q, hidden],
        "self_attn.k_proj.weight": [kv, hidden],
        "self_attn.v_proj.weight": [kv, hidden],
        **(biases if config.attention_bias else {}),
        "self_attn.o_proj.weight": [hidden, q],
        "post_attention_layernorm.weight": [hidden],
        "mlp.gate_proj.weight": [intermediate, hidden],
        "mlp.up_proj.weight": [intermediate, hidden],
        "mlp.down_proj.weight": [hidden, intermediate],
    }
    return {prefix + name: shape for name, shape in shapes.items()}


def _pack(index: int, name: str, shapes: Shapes, dtype: DType, layout: Layout) -> BlockLayout:
    tensors = []
    end = 0
    for tensor, shape in shapes.items():
        own: Layout = layout if dtype == "bfloat16" and _fills_panels(tensor, shape) else "plain"
        tensors.append(Tensor(name=tensor, shape=shape, offset=end, layout=own))
        end += -(-prod(shape) * ITEM_BYTES[dtype] // ALIGNMENT) * ALIGNMENT
    return BlockLayout(index=index, name=name, size_bytes=end, tensors=tuple(tensors))


def _fills_panels(tensor: str, shape: list[int]) -> bool:
    return len(shape) == 2 and tensor != EMBEDDING and shape[0] % PANEL_ROWS == 0 and shape[1] % PANEL_STEP == 0
