"""The KV cache's bytes: one buffer for the life of the worker, shaped to whatever model is loaded."""

import torch

from services.worker.engine.parameters import TORCH_DTYPES
from shared.devices import CPU
from shared.messages.parameters import DType, ModelConfig

# The attention kernel's bits depend on where keys begin, modulo 16 bytes: every block begins at a multiple of 64.
TOKEN_STEP = 16


def allocate_kv_memory(size_bytes: int, device: str = CPU) -> torch.Tensor:
    """Memory for the KV cache, touched now: a first touch while requests wait can take seconds.

    Raises MemoryError where a GPU has less.
    """
    try:
        return torch.empty(size_bytes, dtype=torch.uint8, device=device).zero_()
    except torch.OutOfMemoryError as error:
        raise MemoryError(f"kv_bytes: {device} has no {size_bytes} bytes to give: {error}") from error


class KvStore:
    """Keys and values `[layer, 2, kv_head, token, head_dim]`; block `b` is `block_tokens` tokens of every layer.

    A request's blocks are one contiguous stretch, so its keys are a plain view of the cache.
    """

    def __init__(self, memory: torch.Tensor, config: ModelConfig, dtype: DType, block_tokens: int) -> None:
        if block_tokens % TOKEN_STEP:
            raise ValueError(f"block_size is {block_tokens}, must be a multiple of {TOKEN_STEP}")
        layers, heads, head_dim = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        whole_items = memory.numel() // 4 * 4
        items = memory[:whole_items].view(TORCH_DTYPES[dtype])
        block_items = layers * 2 * heads * block_tokens * head_dim
        self.block_tokens = block_tokens
        self.blocks = items.numel() // block_items
        if self.blocks == 0:
            needed = block_items * items.element_size()
            raise ValueError(
                f"kv_bytes is {memory.numel()}; one block of this model's KV cache takes {needed}, raise it"
            )
        tokens = self.blocks * block_tokens
        self.cache = items[: self.blocks * block_items].view(layers, 2, heads, tokens, head_dim)

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_tokens

    def stretch(self, blocks: range, stop: int) -> torch.Tensor:
        """What a request has cached before position `stop`: a view `[layer, 2, kv_head, stop, head_dim]`."""
        return self.cache.narrow(3, blocks.start * self.block_tokens, stop)

    def write(self, layer: int, slots: torch.Tensor, keys_values: torch.Tensor) -> None:
        """Put `keys_values` `[row, 2, kv_head, head_dim]` into the token slots `slots` `[row]` of `layer`."""
        self.cache[layer].index_copy_(2, slots, keys_values.permute(1, 2, 0, 3))

    def export_kv(self, blocks: range, layers: range) -> memoryview:
        """A copy of `blocks` in `layers`, contiguous bytes ordered as the cache is."""
        copy = self._part(blocks, layers).clone(memory_format=torch.contiguous_format)
        return memoryview(copy.view(torch.uint8).flatten().cpu().numpy().data)

    def import_kv(self, blocks: range, layers: range, data: memoryview) -> None:
        """Put what `export_kv` gave for as many blocks of the same layers into `blocks`. `data` must be writable."""
        part = self._part(blocks, layers)
        expected = part.numel() * part.element_size()
        if data.nbytes != expected:
            raise ValueError(
                f"{len(blocks)} blocks of {len(layers)} layers are {expected} bytes of KV, not {data.nbytes}"
            )
        part.copy_(torch.frombuffer(data, dtype=self.cache.dtype).view(part.shape))

    def copy_kv(self, source: range, target: range) -> None:
        """Put what is in `source`, of all layers, into as many other blocks."""
        layers = range(len(self.cache))
        self._part(target, layers).copy_(self._part(source, layers))

    def _part(self, blocks: range, layers: range) -> torch.Tensor:
        if not (0 <= blocks.start < blocks.stop <= self.blocks and 0 <= layers.start < layers.stop <= len(self.cache)):
            raise ValueError(f"the cache has no blocks {blocks} of layers {layers}")
        begin, end = blocks.start * self.block_tokens, blocks.stop * self.block_tokens
        return self.cache[layers.start : layers.stop, :, :, begin:end]
