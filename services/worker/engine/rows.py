"""The rows of one step as the layers see them, and what attends for them."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import torch

from livescale.services.worker.scheduling.batch import MAX_BATCH_ROWS, ScheduledChunk


class StepAttention(Protocol):
    """Attention for the rows of one step; made once and called by every layer."""

    def __call__(self, layer: int, projected: torch.Tensor) -> torch.Tensor:
        """Store the keys and values of `projected`, and attend.

        `projected` is `[row, feature]`: queries, keys and values without their rotation; it is overwritten. Returns
        `[row, query_head * head_dim]`, padding included.
        """


class Attention(Protocol):
    """Attention of one model, over one KV cache."""

    def over(self, chunks: Sequence[ScheduledChunk]) -> StepAttention:
        """Prepare attention for the rows of `chunks`."""

    def take_sinks(self, layer: int, sinks: torch.Tensor) -> None:
        """Learn the sinks `[query_head]` of a layer, before it runs."""


class Rows:
    """What the engine's steps need to know of the rows of `chunks`, gathered once a step and not once a layer.

    `token_ids` is `[row]`. `sampled` indexes the rows after which a token is sampled. Raises ValueError for more rows
    than a batch may have, or none.
    """

    def __init__(self, chunks: Sequence[ScheduledChunk], attention: Attention, device: torch.device) -> None:
        token_ids = [token for chunk in chunks for token in chunk.tokens]
        if not 1 <= len(token_ids) <= MAX_BATCH_ROWS:
            raise ValueError(f"a batch has 1 to {MAX_BATCH_ROWS} rows, not {len(token_ids)}")
        ends = accumulate(len(chunk.tokens) for chunk in chunks)
        sampled = [end - 1 for chunk, end in zip(chunks, ends, strict=True) if chunk.sampling is not None]
        self.chunks = chunks
        self.count = len(token_ids)
        self.adapted = any(chunk.adapter is not None for chunk in chunks)
        self.token_ids = torch.tensor(token_ids, device=device)
        # Where only decodes run these are all.
        self.sampled = slice(None) if len(sampled) == self.count else torch.tensor(sampled, dtype=torch.long)
        self.attend = attention.over(chunks)
