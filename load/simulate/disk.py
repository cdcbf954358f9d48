"""A disk of a simulation: its checkpoints are made up, and reading them takes the time of a disk."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from livescale.services.host.adapter import AdapterCheckpoint
from livescale.services.host.checkpoint import Checkpoint
from livescale.services.host.stored import Stored
from livescale.shared.links.contract import checksum
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import DType, Manifest, ModelConfig
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.model.declaration.adapter import AdaptedMatrix, AdapterConfig, refuse_model
from livescale.shared.model.sharding import check_shards
from livescale.shared.simulation.sparse_memory import SparseBytes

ADAPTER_RANK = 8
MEMORY_BYTES = 1 << 60  # as much as anyone asks for: the limit of a host is its cache


class MadeUpAdapter(AdapterCheckpoint):
    """An adapter that is in no file."""

    @property
    def files(self) -> set[Path]:
        return set()


def made_up_adapter(directory: Path, config: ModelConfig, dtype: DType) -> MadeUpAdapter:
    """An adapter that changes the queries of all layers. Raises CheckpointError for a model that takes none."""
    refuse_model(config)
    queries = config.num_attention_heads * config.head_dim
    names = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(config.num_hidden_layers)]
    matrices = tuple(AdaptedMatrix(name, "", "", 0, queries, config.hidden_size) for name in names)
    return MadeUpAdapter(directory, config, dtype, AdapterConfig(rank=ADAPTER_RANK, scale=1.0), matrices, {})


class ModelledDisk:
    """A disk that has `models`, by their paths, and reads `rate` bytes a second. Where anybody asks for an adapter of
    one of them, it is there.

    Blocks have the size of real ones and take no room: they are known by a name, which differs by model and block.
    `slowness` is how many times as long as usual reading takes.
    """

    def __init__(self, models: Mapping[str, ModelConfig], rate: float) -> None:
        self._models = models
        self._rate = rate
        self.slowness = 1.0

    def free_bytes(self) -> int:
        return MEMORY_BYTES

    async def open(self, spec: ModelSpec) -> Stored:
        path = spec.path if spec.base_path is None else spec.base_path
        config = self._models.get(path)
        if config is None:
            raise CheckpointError(f"{path}: no such checkpoint; the simulation has {', '.join(self._models)}")
        if spec.base is not None:
            return Stored(made_up_adapter(Path(spec.path), config, spec.dtype))
        dtype, shards, layout, kv_cache_dtype = spec.form
        try:
            config = replace(config, kv_cache_dtype=kv_cache_dtype)
            check_shards(config, shards)
        except ValueError as error:
            raise CheckpointError(f"{spec.path}: {error}") from None
        layouts = block_layouts(config, dtype, shards, layout)
        return Stored(Checkpoint(Path(spec.path), config, dtype, layouts, {}, shards, layout))

    async def allocate(self, sizes: Sequence[int]) -> list[memoryview]:
        return cast("list[memoryview]", [SparseBytes.of(size) for size in sizes])  # hosts only pass them on

    async def read(self, stored: Stored, blocks: Mapping[int, memoryview]) -> AsyncGenerator[int, None]:
        for index, block in blocks.items():
            await asyncio.sleep(self.slowness * block.nbytes / self._rate)
            view = cast("SparseBytes", block)
            view.fill(f"{stored.checkpoint.directory} {index}".encode())
            yield checksum(view)

    async def keep(self, stored: Stored, manifest: Manifest, blocks: Sequence[memoryview]) -> None:
        """Keep nothing: a simulation leaves no files."""

    async def close(self) -> None:
        """Do nothing: no work goes on beside the event loop."""
