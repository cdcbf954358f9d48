"""What models that pool make of a prompt after the last layer: a vector, or scores of it.

A vector is made of the prompt's last row, its first, or the mean of all. It depends on the prompt alone: norm and
matrices take each row by itself, and a mean is added up row by row.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.matrices import make_linear
from livescale.services.worker.engine.norms import as_it_is, norm_of
from livescale.services.worker.engine.parameters import Linear, Tensors, padded
from livescale.services.worker.scheduling.batch import NOTHING_CHOSEN, Chosen, ScheduledChunk
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.requests import TokenLogprobs


class Pooler:
    """The last block of a model that pools, made of its tensors: a norm, and matrices where the model has labels."""

    def __init__(self, config: ModelConfig, tensors: Tensors, kernels: Kernels | None) -> None:
        self._pooling = config.pooling
        self._pad = padded if kernels is None else as_it_is
        self._norm = norm_of(config, tensors, "model.norm", kernels)
        self._pooler: Linear | None = make_linear(tensors, "pooler", kernels=kernels) if config.pooler else None
        self._matrix: Linear | None = make_linear(tensors, "score", kernels=kernels) if config.labels else None

    @torch.inference_mode()
    def pool(self, hidden: torch.Tensor, chunks: Sequence[ScheduledChunk]) -> Chosen:
        """The vector of each prompt that ends in `chunks`, whose rows are `hidden` `[row, hidden]`."""
        taken = list(self._taken(chunks))
        if not taken:
            return NOTHING_CHOSEN
        rows = [row for part in taken for row in part]
        normed = self._norm(self._pad(hidden[rows]))
        if self._matrix is not None:
            normed = self._scores(normed)
        numbers = normed[: len(rows)].float().cpu().numpy()
        # Of one row the mean is the row itself.
        made = [_mean(part) for part in np.split(numbers, np.cumsum([len(part) for part in taken])[:-1])]
        return Chosen([0] * len(taken), {place: told_of(vector) for place, vector in enumerate(made)})

    def _taken(self, chunks: Sequence[ScheduledChunk]) -> Iterator[range]:
        """The rows that each prompt's vector is made of."""
        stop = 0
        for chunk in chunks:
            start, stop = stop, stop + len(chunk.tokens)
            if chunk.sampling is None:
                continue
            match self._pooling:
                case "cls":
                    yield range(start, start + 1)
                case "mean":
                    yield range(start, stop)
                case _:
                    yield range(stop - 1, stop)

    def _scores(self, rows: torch.Tensor) -> torch.Tensor:
        assert self._matrix is not None
        if self._pooler is None:
            return self._matrix(rows)
        # Tangents in float64, row by row, as torch computes the last numbers of a tensor by other instructions.
        bent = torch.stack([row.double().tanh() for row in self._pooler(rows)]).to(rows.dtype)
        return self._matrix(bent)


def _mean(rows: "npt.NDArray[np.float32]") -> "npt.NDArray[np.float32]":
    """The mean of `[row, number]`, added up in float64 in the order of rows."""
    mean: npt.NDArray[np.float32] = (np.add.reduce(rows.astype(np.float64), axis=0) / len(rows)).astype(np.float32)
    return mean


def told_of(vector: "npt.NDArray[np.float32]") -> TokenLogprobs:
    """A vector as it is told in place of a token."""
    return TokenLogprobs(0.0, pooled=vector.astype("<f4").tobytes())
