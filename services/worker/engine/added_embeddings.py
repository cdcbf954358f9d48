"""What is added to the embeddings of tokens where positions are learned: those of positions, and of types of tokens."""

from collections.abc import Sequence

import torch
from torch.nn.functional import embedding

from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.norms import norm_of
from livescale.services.worker.engine.parameters import Tensors, padded
from livescale.services.worker.scheduling.batch import ScheduledChunk
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.declaration.tensors import POSITIONS, TYPES


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
