"""What models that pool make of a prompt after the last layer: a vector, or scores of it.

A vector is that of the prompt's last row, and depends on the prompt alone: norm and matrix take each row by itself.
"""

from collections.abc import Sequence

import numpy as np
import torch

from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.layer import as_it_is, make_norm
from livescale.services.worker.engine.matrices import make_linear
from livescale.services.worker.engine.parameters import Linear, Tensors, padded
from livescale.services.worker.scheduling.batch import NOTHING_CHOSEN, Chosen, ScheduledChunk
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.requests import TokenLogprobs


class Pooler:
    """The last block of a model that pools, made of its tensors: a norm, and a matrix where the model has labels."""

    def __init__(self, config: ModelConfig, tensors: Tensors, kernels: Kernels | None) -> None:
        self._pad = padded if kernels is None else as_it_is
        self._norm = make_norm(tensors["model.norm.weight"], config.rms_norm_eps, kernels, config.norm_offset)
        self._matrix: Linear | None = make_linear(tensors, "score", kernels=kernels) if config.labels else None

    @torch.inference_mode()
    def pool(self, hidden: torch.Tensor, chunks: Sequence[ScheduledChunk]) -> Chosen:
        """The vector of each prompt that ends in `chunks`, whose rows are `hidden` `[row, hidden]`."""
        ends, row = list[int](), -1
        for chunk in chunks:
            row += len(chunk.tokens)
            if chunk.sampling is not None:
                ends.append(row)
        if not ends:
            return NOTHING_CHOSEN
        vectors = self._scores(hidden[ends]).float().cpu().numpy()
        return Chosen([0] * len(ends), {place: told_of(vector) for place, vector in enumerate(vectors)})

    def _scores(self, rows: torch.Tensor) -> torch.Tensor:
        made = self._norm(self._pad(rows))
        return (made if self._matrix is None else self._matrix(made))[: len(rows)]


def told_of(vector: "np.typing.NDArray[np.float32]") -> TokenLogprobs:
    """A vector as it is told in place of a token."""
    return TokenLogprobs(0.0, pooled=vector.astype("<f4").tobytes())
