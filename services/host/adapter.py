"""An adapter on disk, in peft's format, as one block: checked when opened, read in the dtype of its base model.

Its tensors are called as our matrices, with `lora_A` and `lora_B` in place of `weight`. B has the adapter's factor in
it: it is multiplied in float32, and rounded once.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from livescale.services.host.conversion import SAME, SERVED_BITS, STORED_BITS, are_finite, convert
from livescale.services.host.safetensors_files import AGAIN, FLOATS, StoredTensor, read_bytes, read_header
from livescale.shared.messages.parameters import DType, Layout, Manifest, ModelConfig, Tensor
from livescale.shared.model.architectures import architecture_of
from livescale.shared.model.block_layout import ALIGNMENT, ITEM_BYTES, BlockLayout
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.model.checkpoint_files import decode_file
from livescale.shared.model.declaration.adapter import (
    ADAPTER_CONFIG,
    ADAPTER_FILE,
    DOWN,
    UP,
    AdaptedMatrix,
    AdapterConfig,
    adapted_matrices,
    read_adapter_config,
)

BLOCK = "adapter"

Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class AdapterCheckpoint:
    """A well-formed adapter on disk, for the model of `config` served in `dtype`. No parameter has been read yet."""

    directory: Path
    config: ModelConfig
    dtype: DType
    adapter: AdapterConfig
    matrices: tuple[AdaptedMatrix, ...]
    stored: dict[str, StoredTensor]
    shards: int = 1
    layout: Layout = "plain"

    @property
    def files(self) -> set[Path]:
        """The files that its numbers depend on: its configuration and its tensors."""
        return {self.directory / ADAPTER_CONFIG, self.directory / ADAPTER_FILE}

    @property
    def layouts(self) -> tuple[BlockLayout, ...]:
        return (self.block,)

    @property
    def size_bytes(self) -> int:
        return self.block.size_bytes

    @cached_property
    def block(self) -> BlockLayout:
        """The one block that an adapter is: A and B of each matrix, aligned."""
        tensors, end = [], 0
        for name, shape in self._shapes():
            tensors.append(Tensor(name=name, shape=shape, offset=end))
            end += -(-prod(shape) * ITEM_BYTES[self.dtype] // ALIGNMENT) * ALIGNMENT
        return BlockLayout(0, BLOCK, end, tuple(tensors))

    def _shapes(self) -> Iterator[tuple[str, list[int]]]:
        for matrix in self.matrices:
            yield matrix.name + DOWN, [self.adapter.rank, matrix.inputs]
            yield matrix.name + UP, [matrix.rows, self.adapter.rank]

    def read_block(self, index: int, into: memoryview) -> int:
        """Fill `into` with the block and return its xxh3-64. Raises CheckpointError for a file that has changed
        or holds NaN or infinity."""
        layout = self.layouts[index]
        into[:] = bytes(layout.size_bytes)
        tensors = iter(layout.tensors)
        for matrix in self.matrices:
            down = _numbers(self.stored[matrix.down])
            up = _numbers(self.stored[matrix.up].rows(matrix.start, matrix.start + matrix.rows))
            if matrix.order:
                up = up.reshape(-1, len(matrix.order), up.shape[1])[:, list(matrix.order)]
            self._put(next(tensors), down, into)
            self._put(next(tensors), up * np.float32(self.adapter.scale), into)
        return xxhash.xxh3_64_intdigest(into)

    def manifest(self, checksums: Sequence[int]) -> Manifest:
        """The manifest of the adapter, whose block has this checksum."""
        block = self.block.block(checksums[0])
        told: dict[str, Any] = msgspec.to_builtins(block)
        version = hashlib.sha256(msgspec.msgpack.encode([self.config.family, self.dtype, told])).hexdigest()[:32]
        return Manifest(version=version, config=self.config, dtype=self.dtype, blocks=[block])

    def _put(self, tensor: Tensor, numbers: Numbers, into: memoryview) -> None:
        """Round the numbers of a tensor to where it lies."""
        bits = np.ascontiguousarray(numbers).reshape(-1).view(np.uint32)
        target = np.frombuffer(into, SERVED_BITS[self.dtype], len(bits), tensor.offset)
        convert(bits, "F32", self.dtype, target)
        if not are_finite(target, SAME[self.dtype]):
            raise CheckpointError(
                f"{self.directory / ADAPTER_FILE}: {tensor.name} holds NaN or infinity in {self.dtype}; {AGAIN}"
            )


def open_adapter(directory: Path, config: ModelConfig, dtype: DType) -> AdapterCheckpoint:
    """Check an adapter's files against the model that it is for. Raises CheckpointError."""
    said, file = directory / ADAPTER_CONFIG, directory / ADAPTER_FILE
    try:
        adapter = read_adapter_config(decode_file(said, dict[str, Any]))
    except CheckpointError as error:
        raise error if str(said) in str(error) else CheckpointError(f"{said}: {error}") from None
    if not file.exists() and (directory / "adapter_model.bin").exists():
        raise CheckpointError(f"{directory}: has no {ADAPTER_FILE}; convert adapter_model.bin to safetensors")
    stored = read_header(file)
    try:
        shapes = {name: tensor.shape for name, tensor in stored.items()}
        matrices = adapted_matrices(config, architecture_of(config), shapes, adapter.rank)
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from None
    odd = [tensor for tensor in stored.values() if tensor.dtype not in FLOATS]
    if odd:
        raise CheckpointError(f"{file}: {odd[0].name} is {odd[0].dtype}; supported are {', '.join(FLOATS)}")
    return AdapterCheckpoint(directory, config, dtype, adapter, tuple(matrices), stored)


def _numbers(stored: StoredTensor) -> Numbers:
    """A tensor of the file in float32, which has every number that it can hold."""
    bits = np.empty(prod(stored.shape), np.uint32)
    convert(read_bytes(stored).view(STORED_BITS[stored.dtype]), stored.dtype, "float32", bits)
    return bits.view(np.float32).reshape(stored.shape)
