"""The first block of a model: what enters the first layer, made of tokens or of images."""

import torch
from torch.nn.functional import embedding

from livescale.services.worker.engine.added_embeddings import AddedEmbeddings
from livescale.services.worker.engine.attention import Rows
from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.parameters import Tensors
from livescale.services.worker.engine.patches import Patches
from livescale.services.worker.engine.tensor_parallel import Ranks, embed_part, shared
from livescale.shared.messages.parameters import Manifest, ModelConfig
from livescale.shared.model.declaration.tensors import EMBEDDING
from livescale.shared.model.sharding import vocabulary


class Embeddings:
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
