"""A checkpoint on disk as the blocks of a model: checked when opened, read block by block in the serving dtype."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import xxhash

from livescale.services.host.conversion import (
    SAME,
    SERVED_BITS,
    STORED_BITS,
    Bits,
    are_finite,
    convert,
    lay_in_panels,
    read_fused,
    read_transposed,
)
from livescale.services.host.find_parameters import find_parameters, read_router
from livescale.services.host.quantized import QuantizedReader
from livescale.services.host.safetensors_files import (
    AGAIN,
    StoredTensor,
    fill_bytes,
    open_tensors,
    read_pieces,
)
from livescale.shared.messages.parameters import Block, DType, KvCacheDType, Layout, Manifest, ModelConfig, Tensor
from livescale.shared.model.architectures import architecture_of
from livescale.shared.model.block_layout import BlockLayout, block_layouts, check_dtype, tensor_bytes
from livescale.shared.model.checkpoint import CheckpointError, load_model_config
from livescale.shared.model.declaration.tensors import EMBEDDING, HEAD, Cut, Source, model_parameters
from livescale.shared.model.sharding import ShardSlice, check_shards, find_shard_slice, stored_names

# Fields of a configuration that came after models were stored, and what they are where they say nothing.
LATER: dict[str, object] = {
    "kv_cache_dtype": "auto",
    "kinds": [],
    "layer_kinds": [],
    "embedding_scale": 1.0,
    "logits_scale": 1.0,
    "logits_cap": 0.0,
    "norm_offset": 0.0,
    "rotary_dim": 0,
    "interleaved": False,
    "short_positions": 0,
    "experts": None,
    "layer_norms": False,
    "norm_biases": True,
    "learned_positions": False,
    "encodes": False,
    "position_offset": 0,
    "token_types": 0,
    "pooler": False,
    "pooling": "none",
    "normalized": False,
    "bare_scores": False,
    "labels": 0,
    "classifier_from_token": [],
    "quantization": None,
    "latent": None,
    "images": None,
}
LATER_OF_KINDS = {"parallel": False, "short_frequencies": None, "turning_scale": 1.0}
LATER_OF_EXPERTS = {
    **{"scoring": "softmax", "groups": 1, "chosen_groups": 1, "scale": 1.0, "shared_features": 0},
    "shared_gate": False,
}


@dataclass(frozen=True)
class Checkpoint:
    """A well-formed checkpoint on disk, cut for `shards` ranks. None of its parameters has been read yet."""

    directory: Path
    config: ModelConfig
    dtype: DType
    layouts: tuple[BlockLayout, ...]
    stored: dict[str, StoredTensor]
    shards: int = 1
    layout: Layout = "plain"

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Where each tensor lies in the checkpoint."""
        return architecture_of(self.config).sources(self.config)

    @cached_property
    def cuts(self) -> dict[str, Cut | None]:
        """How each tensor is cut over ranks, by name; None for those that all ranks have whole."""
        return {one.name: one.cut for block in model_parameters(self.config).values() for one in block}

    @cached_property
    def widths(self) -> dict[str, int]:
        """How many columns each tensor has before it is cut."""
        return {one.name: one.shape[-1] for block in model_parameters(self.config).values() for one in block}

    @cached_property
    def quantized(self) -> QuantizedReader | None:
        """Reads the matrices that are quantized; None where none is."""
        return None if self.config.quantization is None else QuantizedReader(self.config.quantization, self.stored)

    @property
    def files(self) -> set[Path]:
        """The files that hold its parameters, each once."""
        return {stored.file for stored in self.stored.values()}

    @property
    def size_bytes(self) -> int:
        return sum(layout.size_bytes for layout in self.layouts)

    def read_block(self, index: int, into: memoryview) -> int:
        """Fill `into` (bytes, exactly the block's size) and return its xxh3-64.

        Raises CheckpointError when a file has changed, cannot be read, or holds values that are not finite.
        """
        layout, shard = self.layouts[index], index * self.shards // len(self.layouts)
        if into.nbytes != layout.size_bytes:
            raise ValueError(f"block {index} has {layout.size_bytes} bytes, not {into.nbytes}")
        end = 0
        for tensor in layout.tensors:
            if tensor.packing is not None:
                into[end : tensor.offset] = bytes(tensor.offset - end)
                end = tensor.offset + tensor_bytes(tensor, self.dtype)
                self._read_packed(tensor, shard, into[tensor.offset : end])
                continue
            into[end : tensor.offset] = bytes(tensor.offset - end)
            end = tensor.offset + tensor_bytes(tensor, self.dtype)
            cut = find_shard_slice(self.cuts[tensor.name], self.config, shard, self.shards)
            names = stored_names(tensor.name, self.config, shard, self.shards)
            size = (end - tensor.offset) // len(names)
            for start, name in zip(range(tensor.offset, end, size), names, strict=True):
                self._read_part(name, tensor, cut, into[start : start + size])
            if tensor.layout == "panels":
                lay_in_panels(np.frombuffer(into[tensor.offset : end], np.uint16).reshape(-1, tensor.shape[-1]))
        into[end:] = bytes(layout.size_bytes - end)
        if index == len(self.layouts) - 1:
            self._check_tied_head()
        return xxhash.xxh3_64_intdigest(into)

    def _read_part(self, name: str, tensor: Tensor, cut: ShardSlice | None, into: memoryview) -> None:
        """Read what the checkpoint has of a tensor under one of its names."""
        source, dtype = self.sources[name], tensor.dtype or self.dtype
        if self.quantized is not None and read_router(name, source, self.config, self.quantized, into):
            return
        if source.fused is not None:
            read_fused(self.stored[source.name], source.fused, cut, into, dtype)
            return
        if source.transposed:
            read_transposed(self.stored[source.name], source, cut, into, dtype)
        else:
            stored = self.stored[source.name].rows(source.start, source.start + source.rows)
            with open_tensors(stored.file) as stream:
                _read_tensor(stored, cut, stream, into, dtype)
        if source.order:
            _order_heads(np.frombuffer(into, SERVED_BITS[dtype]), tensor.shape, source.order)

    def _read_packed(self, tensor: Tensor, shard: int, into: memoryview) -> None:
        assert self.quantized is not None
        assert tensor.packing is not None
        cut = find_shard_slice(self.cuts[tensor.name], self.config, shard, self.shards)
        names = stored_names(tensor.name, self.config, shard, self.shards)
        size = into.nbytes // len(names)
        for start, name in zip(range(0, into.nbytes, size), names, strict=True):
            part = into[start : start + size]
            self.quantized.read(self.sources[name], self.widths[tensor.name], tensor.packing, cut, part)

    def manifest(self, checksums: Sequence[int]) -> Manifest:
        """The manifest of the whole model; `checksums` has one for each block, in order."""
        blocks = [layout.block(checksum) for layout, checksum in zip(self.layouts, checksums, strict=True)]
        return Manifest(
            version=content_version(self.config, self.dtype, blocks, self.layout),
            config=self.config,
            dtype=self.dtype,
            layout=self.layout,
            shards=self.shards,
            blocks=blocks,
        )

    def _check_tied_head(self) -> None:
        """Some checkpoints repeat a tied head; one that differs from the embedding belongs to another config.json."""
        if not (self.config.tie_word_embeddings and HEAD in self.stored):
            return
        embedding, head = self.stored[self.sources[EMBEDDING].name], self.stored[HEAD]
        with open_tensors(embedding.file) as left, open_tensors(head.file) as right:
            same = (embedding.dtype, embedding.shape) == (head.dtype, head.shape) and all(
                one == other for one, other in zip(read_pieces(embedding, left), read_pieces(head, right), strict=True)
            )
        if not same:
            raise CheckpointError(
                f"{head.file}: {HEAD} differs from {embedding.name} though config.json ties them; "
                "set tie_word_embeddings to false there"
            )


def open_checkpoint(
    path: Path, dtype: DType, shards: int = 1, layout: Layout = "plain", kv_cache_dtype: KvCacheDType = "auto"
) -> Checkpoint:
    """Check configuration and headers of the Hugging Face directory `path`. Raises CheckpointError."""
    config = load_model_config(path, kv_cache_dtype)
    try:
        check_shards(config, shards)
        check_dtype(config, dtype)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    stored = find_parameters(path, config)
    return Checkpoint(path, config, dtype, block_layouts(config, dtype, shards, layout), stored, shards, layout)


def content_version(config: ModelConfig, dtype: DType, blocks: list[Block], layout: Layout) -> str:
    """Equal content has an equal version, wherever and whenever it was read."""
    told = [_told_block(block) for block in blocks]
    return hashlib.sha256(msgspec.msgpack.encode([_telling(config), dtype, layout, told])).hexdigest()[:32]


def _telling(config: ModelConfig) -> dict[str, object]:
    """The configuration without the fields that came later and say nothing of this model: it keeps its version."""
    fields: dict[str, object] = msgspec.to_builtins(config)
    fields["kinds"] = [_without(msgspec.to_builtins(kind), LATER_OF_KINDS) for kind in config.kinds]
    if isinstance(experts := fields["experts"], dict):
        fields["experts"] = _without(experts, LATER_OF_EXPERTS)
    return _without(fields, LATER)


def _without(fields: dict[str, object], later: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if name not in later or value != later[name]}


def _told_block(block: Block) -> dict[str, object]:
    """The block without the packing and the type of tensors that have none of their own, for the same reason."""
    fields: dict[str, Any] = msgspec.to_builtins(block)
    fields["tensors"] = [_without(tensor, {"packing": None, "dtype": None}) for tensor in fields["tensors"]]
    return fields


def _order_heads(values: Bits, shape: Sequence[int], order: Sequence[int]) -> None:
    """Rearrange the rows of each head of queries or keys, as RoPE pairs them here."""
    heads = values.reshape(-1, len(order), *shape[1:])
    heads[:] = heads[:, list(order)]


def _read_tensor(
    stored: StoredTensor, cut: ShardSlice | None, stream: BinaryIO, into: memoryview, dtype: DType
) -> None:
    target = np.frombuffer(into, SERVED_BITS[dtype])
    if cut is not None and cut.dimension == 0:
        stored, cut = stored.rows(cut.start, cut.stop), None
    finite = True
    if cut is None and stored.dtype == SAME[dtype]:
        fill_bytes(stored, stream, 0, into)
    else:
        start = 0
        for piece in read_pieces(stored, stream):
            values = np.frombuffer(piece, STORED_BITS[stored.dtype])
            if cut is not None:
                values = values.reshape(-1, *stored.shape[1:])[:, cut.start : cut.stop].flatten()
            finite = finite and are_finite(values, stored.dtype)
            convert(values, stored.dtype, dtype, target[start : start + len(values)])
            start += len(values)
    # A number that is finite in the checkpoint may be too large for the type in which it is served.
    if not (finite and are_finite(target, SAME[dtype])):
        raise CheckpointError(f"{stored.file}: {stored.name} holds NaN or infinity in {dtype}; {AGAIN}")
