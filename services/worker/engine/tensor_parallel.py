"""Tensor parallelism (Megatron-LM): what the ranks of an instance compute together, each from its part of the tensors.

Parts are gathered, and added in float32 in the order of ranks: so every rank of every instance has the same bits.
"""

from typing import Protocol

import torch
from torch.nn.functional import embedding, pad

from livescale.services.worker.engine.parameters import Linear


class Ranks(Protocol):
    """The `size` ranks of an instance, as one of them sees them. All make the same calls, with tensors of one shape on
    `device`."""

    size: int
    device: str

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """What each rank gave, in their order, as tensors of the caller's own. Raises RankLost."""

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the first rank gave, in place of what is in `tensor`. Raises RankLost."""


class Adding(Protocol):
    """A matrix whose product is added to something."""

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """`residual` `[row, out]` plus what this makes of `rows` `[row, in]`."""


class RowParallel:
    """The columns of a matrix `[out, in]` that this rank has, for its part of the input; the others have the rest."""

    def __init__(self, matrix: Linear, ranks: Ranks) -> None:
        self._matrix = matrix
        self._ranks = ranks

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return added([*self._ranks.gather(self._matrix(rows)), residual])


def row_parallel(matrix: Linear, ranks: Ranks | None) -> Adding:
    """`matrix` itself where there is but one rank."""
    return matrix if ranks is None else RowParallel(matrix, ranks)


def embed_part(token_ids: torch.Tensor, part: torch.Tensor, own: range, ranks: Ranks) -> torch.Tensor:
    """`[row]` -> `[row, hidden]`; of the embedding this rank has `part` `[token, hidden]`, for its `own` tokens."""
    elsewhere = (token_ids < own.start) | (token_ids >= own.stop)
    rows = embedding((token_ids - own.start).masked_fill(elsewhere, 0), part)
    return added(ranks.gather(rows.masked_fill(elsewhere.unsqueeze(1), 0.0)))


def shared(rows: torch.Tensor, ranks: Ranks | None) -> torch.Tensor:
    """What the first rank has in `rows`, of which the others know the shape."""
    return rows if ranks is None else ranks.share(rows)


def side_by_side(logits: torch.Tensor, vocab_size: int, ranks: Ranks) -> torch.Tensor:
    """`[row, vocab]` from each rank's `[row, token]`: the last may have fewer tokens than the others."""
    most = -(-vocab_size // ranks.size)
    return torch.cat(ranks.gather(pad(logits, (0, most - logits.shape[1]))), dim=1)[:, :vocab_size]


def least(count: int, ranks: Ranks) -> int:
    """The least of what the ranks have."""
    return min(int(one) for one in ranks.gather(torch.tensor(count, device=ranks.device)))


def added(parts: list[torch.Tensor]) -> torch.Tensor:
    """One after the other in float32, rounded once."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part
    return total.to(parts[0].dtype)
