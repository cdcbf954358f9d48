"""Attention of layers that attend otherwise than Llama's, by torch's kernels: with a window, with another factor of
scores, with a limit that scores are bent towards, or with sinks.

A window begins at a multiple of 16 positions, and a mask hides the first of them: on a CPU torch's bits depend on where
keys begin.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from livescale.shared.messages.parameters import LayerKind

WINDOW_STEP = 16


class Masking(NamedTuple):
    """How a layer attends, and its sinks, if it has any: a score more of each query head, for which nothing is
    gathered."""

    kind: LayerKind
    sinks: torch.Tensor | None = None

    def across(self, *dimensions: int) -> "Masking":
        """The sinks `[kv_head, group]` with more dimensions of one."""
        sinks = self.sinks
        for dimension in dimensions:
            sinks = None if sinks is None else sinks.unsqueeze(dimension)
        return Masking(self.kind, sinks)


def attends_plainly(kind: LayerKind) -> bool:
    """Whether a row sees all positions up to its own, with the usual factor of scores."""
    return not (kind.window or kind.attention_scale or kind.score_cap or kind.sinks)


def attend_masked(
    masking: Masking, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: range
) -> torch.Tensor:
    """Queries `[..., row, head_dim]` over keys and values `[..., token, head_dim]`, of which the last query sees all.

    The queries are at `positions`, or all at the only one.
    """
    kind, sinks = masking
    first = max(positions.start + 1 - kind.window, 0) if kind.window else 0
    begin = first // WINDOW_STEP * WINDOW_STEP
    mask = _mask(kind.window, positions, begin, keys)
    keys, values = keys[..., begin:, :], values[..., begin:, :]
    scale = kind.attention_scale or queries.shape[-1] ** -0.5
    if not kind.score_cap and sinks is None:
        return scaled_dot_product_attention(queries, keys, values, mask, scale=scale)
    scores = (queries.float() @ keys.float().transpose(-1, -2)) * (scale / (kind.score_cap or 1.0))
    if kind.score_cap:
        scores = scores.tanh() * kind.score_cap
    scores = scores + mask
    if sinks is None:
        weights = scores.softmax(dim=-1)
    else:
        weights = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), dim=-1).softmax(dim=-1)[..., :-1]
    return (weights @ values.float()).to(queries.dtype)


def _mask(window: int, positions: range, begin: int, like: torch.Tensor) -> torch.Tensor:
    """`[row, token]` for the tokens from `begin` on: zero where a row sees a token, else minus infinity."""
    rows = torch.arange(positions.start, positions.stop, device=like.device).unsqueeze(1)
    tokens = torch.arange(begin, positions.stop, device=like.device)
    hidden = tokens > rows
    if window:
        hidden |= tokens + window <= rows
    return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill(hidden, float("-inf"))
