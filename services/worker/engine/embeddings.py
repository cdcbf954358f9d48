"""The first block of a model: what enters the first layer, made of tokens or of images."""

from collections.abc import Sequence

import torch
from torch.nn.functional import embedding

from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.norms import norm_of
from livescale.services.worker.engine.parameters import Tensors, padded
from livescale.services.worker.engine.patches import Patches
from livescale.services.worker.engine.rows import Rows
from livescale.services.worker.engine.tensor_parallel import Ranks, embed_part, shared
from livescale.services.worker.scheduling.batch import ScheduledChunk
from livescale.shared.messages.parameters import Manifest, ModelConfig
from livescale.shared.model.declaration.tensors import EMBEDDING, POSITIONS, TYPES
from livescale.shared.model.sharding import vocabulary


class AddedEmbeddings:
    """The tables of the first block, and its norm where it has one, made of its tensors."""

    def __init__(self, config: ModelConfig, tensors: Tensors, kernels: Kernels | None) -> None:
        self._positions = tensors[POSITIONS]
        self._types = tensors.get(TYPES)
        self._offset = config.position_offset
        self._norm = norm_of(config, tensors, "model.embed_norm", kernels)
        self._pads = kernels is None

    def add_to(self, hidden: torch.Tensor, chunks: Sequence[ScheduledChunk]) -> torch.Tensor:
        """Embeddings `[row, hidden]` of the rows of `chunks`, with what is added, normalized. Sums are taken in float32
        and rounded once."""
        positions = [position + self._offset for chunk in chunks for position in range(chunk.start, chunk.stop)]
        added = embedding(torch.tensor(positions, device=hidden.device), self._positions).float()
        if self._types is not None:
            types = [kind for chunk in chunks for kind in _types_of(chunk, len(self._types))]
            added = added + embedding(torch.tensor(types, device=hidden.device), self._types)
        total = (hidden + added).to(hidden.dtype)
        return self._norm(padded(total) if self._pads else total)[: len(hidden)]


def _types_of(chunk: ScheduledChunk, types: int) -> list[int]:
    """The first type for the rows of the first text, the second for those of the second one, where there is one."""
    second = 0 if chunk.sampling is None or types < 2 else chunk.sampling.params.second
    first = min(second, chunk.stop) if second else chunk.stop
    return [0] * first + [1] * (chunk.stop - first)


class InputEmbeddings:
    """The block's `tensors`, as the rank of `manifest` has them; `config` is what this rank computes."""

    def __init__(
        self, manifest: Manifest, config: ModelConfig, tensors: Tensors, kernels: Kernels | None, ranks: Ranks | None
    ) -> None:
        self.table = tensors[EMBEDDING]
        self._own_tokens = vocabulary(manifest.config, manifest.shard, manifest.shards)
        self._is_first = manifest.shard == 0
        self._ranks = ranks
        self._added = AddedEmbeddings(config, tensors, kernels) if config.adds_positions else None
        self._patches = None if config.images is None else Patches(config.images, tensors, kernels)
        self._scale = None
        if config.embedding_scale != 1.0:
            self._scale = torch.tensor(config.embedding_scale, dtype=self.table.dtype, device=self.table.device)

    def embed(self, rows: Rows) -> torch.Tensor:
        """The embeddings of all rows: `[row, hidden]`."""
        hidden = self._looked_up(rows) if self._patches is None else self._of_images(self._patches, rows)
        if self._added is not None:
            hidden = self._added.add_to(hidden, rows.chunks)
        return hidden if self._scale is None else hidden * self._scale

    def _looked_up(self, rows: Rows) -> torch.Tensor:
        if self._ranks is None:
            return embedding(rows.token_ids, self.table)
        return embed_part(rows.token_ids, self.table, self._own_tokens, self._ranks)

    def _of_images(self, patches: Patches, rows: Rows) -> torch.Tensor:
        """The rows of images, which the first rank makes and shares: the others have no pixels."""
        made = patches.embed(rows.chunks) if self._is_first else self.table.new_empty(rows.count, self.table.shape[1])
        return shared(made, self._ranks)
