"""How many bytes activations and KV take. Pure."""

from livescale.services.worker.scheduling.batch import KvSlice
from livescale.shared.messages.parameters import Manifest
from livescale.shared.model.block_layout import ITEM_BYTES, kv_item_bytes
from livescale.shared.model.sharding import shard_config


def activation_bytes(manifest: Manifest, positions: int) -> int:
    """The size of an activation `[position, hidden]`."""
    return positions * manifest.config.hidden_size * ITEM_BYTES[manifest.dtype]


def block_bytes(manifest: Manifest, block_tokens: int) -> int:
    """The size of one block of the KV cache, over all layers."""
    return kv_bytes(manifest, block_tokens, manifest.config.num_hidden_layers, block_tokens)


def kv_bytes(manifest: Manifest, positions: int, layers: int, block_tokens: int) -> int:
    """The size of KV in whole blocks, `[layer, part, kv_head, token, head_dim]`; of several ranks, what each has."""
    config = shard_config(manifest.config, manifest.shard, manifest.shards)
    tokens = -(-positions // block_tokens) * block_tokens
    heads = config.kv_parts * config.num_key_value_heads
    return layers * heads * tokens * config.head_dim * kv_item_bytes(config, manifest.dtype)


def slice_bytes(manifest: Manifest, one: KvSlice) -> int:
    """The size of a slice, `[layer, part, kv_head, position, head_dim]`: its positions only, no whole blocks."""
    return kv_bytes(manifest, one.stop - one.start, len(one.layers), block_tokens=1)
