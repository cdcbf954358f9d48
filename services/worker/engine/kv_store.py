"""The bytes of the KV cache: one buffer for the life of the worker, shaped to the model that is loaded."""

import time
from collections.abc import Sequence

import torch

from livescale.services.worker.engine.parameters import TORCH_DTYPES
from livescale.services.worker.scheduling.batch import KvCopy, KvPiece, KvSlice
from livescale.shared.memory.arena import Arena, cuda_runtime
from livescale.shared.memory.devices import CPU
from livescale.shared.messages.parameters import DType, ModelConfig

# The largest number of float8_e4m3fn.
MOST_FP8 = 448.0
# The attention kernel's bits depend on where keys begin, modulo 16 bytes: every block begins at a multiple of 64.
TOKEN_STEP = 16
FETCHED_BLOCKS = 8  # in a measured copy


def allocate_kv_memory(size_bytes: int, device: str = CPU) -> torch.Tensor:
    """Allocate memory for the KV cache and touch it now: a first touch while requests wait can take seconds.

    Raises MemoryError where a GPU has less.
    """
    try:
        return torch.empty(size_bytes, dtype=torch.uint8, device=device).zero_()
    except torch.OutOfMemoryError as error:
        raise MemoryError(f"{device} has no {size_bytes} bytes for the KV cache; lower --kv-bytes: {error}") from error


def allocate_host_kv_memory(size_bytes: int, device: str = CPU) -> torch.Tensor:
    """Allocate memory of the host for KV that has left the cache on `device`, and touch it now. Raises MemoryError."""
    try:
        if device == CPU or not size_bytes:
            return torch.empty(size_bytes, dtype=torch.uint8).zero_()
        # Pinned here: torch would take as much as the next power of two.
        (memory,) = Arena(size_bytes, cuda_runtime()).place([size_bytes])
        return torch.frombuffer(memory, dtype=torch.uint8)
    except (RuntimeError, OSError) as error:
        raise MemoryError(
            f"the host has no {size_bytes} bytes for evicted KV; lower --host-kv-bytes: {error}"
        ) from error


class KvStore:
    """Keys and values `[layer, part, kv_head, token, head_dim]`; block `b` is `block_tokens` tokens of every layer.
    The parts are keys and values, or one that is both.

    They are numbers of the model's `dtype`, or the bits of float8_e4m3fn as bytes: what is written is rounded to the
    nearest, of two to the even one, and to 448 beyond that. Whoever attends reads what is kept, by `numbers`.

    A request's blocks are one contiguous stretch, so its keys are a plain view of the cache. Negative blocks are those
    of `host_memory`, each contiguous by itself. Raises ValueError where not even one block fits.
    """

    def __init__(
        self,
        memory: torch.Tensor,
        config: ModelConfig,
        dtype: DType,
        block_tokens: int,
        host_memory: torch.Tensor | None = None,
    ) -> None:
        if block_tokens % TOKEN_STEP:
            raise ValueError(f"--block-size is {block_tokens}, must be a multiple of {TOKEN_STEP}")
        if config.kv_cache_dtype == "fp8" and memory.is_cuda:
            raise ValueError("kv_cache_dtype is fp8, which workers on GPUs do not have; register the model with auto")
        layers, heads, head_dim = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        self.dtype_name, self.dtype = dtype, TORCH_DTYPES[dtype]
        self.is_fp8 = config.kv_cache_dtype == "fp8"
        kept = torch.uint8 if self.is_fp8 else self.dtype
        items = _items(memory, kept)
        parts = config.kv_parts
        block_items = layers * parts * heads * block_tokens * head_dim
        self.block_tokens = block_tokens
        self.blocks = items.numel() // block_items
        if self.blocks == 0:
            needed = block_items * items.element_size()
            raise ValueError(
                f"--kv-bytes is {memory.numel()}, and one block of this model's KV cache takes {needed}; raise it"
            )
        tokens = self.blocks * block_tokens
        self.cache = items[: self.blocks * block_items].view(layers, parts, heads, tokens, head_dim)
        host_items = items[:0] if host_memory is None else _items(host_memory, kept)
        self.host_blocks = host_items.numel() // block_items
        in_host = host_items[: self.host_blocks * block_items]
        self._host = in_host.view(self.host_blocks, layers, parts, heads, block_tokens, head_dim)

    @property
    def layers(self) -> int:
        return len(self.cache)

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_tokens

    def stretch(self, blocks: range, stop: int) -> torch.Tensor:
        """The KV of a request before position `stop`, as a view `[layer, part, kv_head, stop, head_dim]`."""
        return self.cache.narrow(3, blocks.start * self.block_tokens, stop)

    def write(self, layer: int, slots: torch.Tensor, keys_values: torch.Tensor) -> None:
        """Store `keys_values` `[row, part, kv_head, head_dim]` in the token slots `slots` `[row]` of `layer`."""
        if self.is_fp8:
            keys_values = keys_values.clamp(-MOST_FP8, MOST_FP8).to(torch.float8_e4m3fn).view(torch.uint8)
        self.cache[layer].index_copy_(2, slots, keys_values.permute(1, 2, 0, 3))

    def export_kv(self, blocks: range, layers: range) -> memoryview:
        """Copy `blocks` in `layers` as contiguous bytes, ordered as the cache is."""
        copy = self._part(blocks, layers).clone(memory_format=torch.contiguous_format)
        return memoryview(copy.view(torch.uint8).flatten().cpu().numpy().data)

    def import_kv(self, blocks: range, layers: range, data: memoryview) -> None:
        """Store what `export_kv` returned for as many blocks of the same layers. `data` must be writable.

        Raises ValueError for a wrong number of bytes.
        """
        part = self._part(blocks, layers)
        expected = part.numel() * part.element_size()
        if data.nbytes != expected:
            raise ValueError(
                f"{len(blocks)} blocks of {len(layers)} layers are {expected} bytes of KV, not {data.nbytes}"
            )
        part.copy_(torch.frombuffer(data, dtype=self.cache.dtype).view(part.shape))

    def export_slices(self, slices: Sequence[KvSlice], spare_bytes: int = 0) -> memoryview:
        """Copy these slices one after the other, each ordered as the cache is. So many spare bytes follow, for the
        caller."""
        parts = [self._slice(one) for one in slices]
        sizes = [part.numel() for part in parts]
        items = self.cache.new_empty(sum(sizes) + spare_bytes // self.cache.element_size())
        for part, copy in zip(parts, items[: sum(sizes)].split_with_sizes(sizes), strict=True):
            copy.view(part.shape).copy_(part)
        return memoryview(items.view(torch.uint8).cpu().numpy().data)

    def import_slices(self, slices: Sequence[KvSlice], data: memoryview) -> None:
        """Store what `export_slices` returned for as many positions of the same layers. `data` must be writable.

        Raises ValueError for a wrong number of bytes.
        """
        parts = [self._slice(one) for one in slices]
        expected = sum(part.numel() for part in parts) * self.cache.element_size()
        if data.nbytes != expected:
            raise ValueError(f"{len(slices)} slices are {expected} bytes of KV, not {data.nbytes}")
        items = torch.frombuffer(data, dtype=self.cache.dtype)
        for part, came in zip(parts, torch.split_with_sizes(items, [one.numel() for one in parts]), strict=True):
            part.copy_(came.view(part.shape))

    def lay_down(self, copies: Sequence[KvCopy], pieces: Sequence[KvPiece]) -> None:
        """Make these copies, then store each piece. Raises ValueError for a wrong number of bytes."""
        for copy in copies:
            self.copy_kv(copy.source, copy.target)
        for one, data in pieces:
            self.import_slices([one], data)

    def copy_kv(self, source: range, target: range) -> None:
        """Copy the KV of all layers in `source` into as many other blocks."""
        self._block_by_block(target).copy_(self._block_by_block(source))

    def fetch_rate(self) -> float | None:
        """Tokens per second that a copy from host memory brings, measured while the cache is empty. None without host
        memory."""
        count = min(self.blocks, self.host_blocks, FETCHED_BLOCKS)
        if not count:
            return None
        self.copy_kv(range(-count, 0), range(count))  # the first one finds nothing prepared
        begun = time.perf_counter()
        self.copy_kv(range(-count, 0), range(count))
        self._part(range(1), range(1)).sum().item()  # a GPU is done only now
        return count * self.block_tokens / (time.perf_counter() - begun)

    def _block_by_block(self, blocks: range) -> torch.Tensor:
        """The blocks as `[block, layer, part, kv_head, token, head_dim]`, wherever they lie."""
        if blocks.start >= 0:
            part = self._part(blocks, range(len(self.cache)))
            return part.view(*part.shape[:3], len(blocks), self.block_tokens, -1).movedim(3, 0)
        if not -self.host_blocks <= blocks.start < blocks.stop <= 0:
            raise ValueError(f"host memory has no blocks {blocks}")
        return self._host[blocks.start + self.host_blocks : blocks.stop + self.host_blocks]

    def _part(self, blocks: range, layers: range) -> torch.Tensor:
        if not (0 <= blocks.start < blocks.stop <= self.blocks and 0 <= layers.start < layers.stop <= len(self.cache)):
            raise ValueError(f"the cache has no blocks {blocks} of layers {layers}")
        begin, end = blocks.start * self.block_tokens, blocks.stop * self.block_tokens
        return self.cache[layers.start : layers.stop, :, :, begin:end]

    def _slice(self, one: KvSlice) -> torch.Tensor:
        stretch = self._part(one.blocks, one.layers)
        if not 0 <= one.start < one.stop <= stretch.shape[3]:
            raise ValueError(f"blocks {one.blocks} have no positions {one.start} .. {one.stop - 1}")
        return stretch[:, :, :, one.start : one.stop]


def numbers(kept: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers of a part of the cache in the model's dtype, which has all of float8_e4m3fn."""
    return kept.view(torch.float8_e4m3fn).to(dtype) if kept.dtype == torch.uint8 else kept


def _items(memory: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return memory[: memory.numel() // 4 * 4].view(dtype)
