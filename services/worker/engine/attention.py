"""Attention, one call a sequence: so that nothing of a row's result depends on what else is in the batch."""

from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from services.worker.batch import PREFILL_CHUNK


def use_math_kernels() -> None:
    """On GPUs of this process: the fused kernels want alignments that views of the cache do not have."""
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


class Attention(Protocol):
    """Neighbouring rows of one request that attend in one call."""

    rows: int

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """`[row, kv_head, group, head_dim]` -> `[row, kv_head * group * head_dim]`."""


class ChunkAttention:
    """A chunk of a prompt: its last row sees the whole `stretch` `[layer, 2, kv_head, token, head_dim]`.

    `mask` `[row, token]` is what hides the future; None where rows and tokens are the same positions.
    """

    def __init__(self, stretch: torch.Tensor, rows: int, group: int, mask: torch.Tensor | None) -> None:
        self.rows = rows
        self._mask = mask
        # Repeated for every query head of the group without a copy.
        repeated = stretch.unsqueeze(3).expand(-1, -1, -1, group, -1, -1)
        self._keys_values = repeated.flatten(0, 1).unbind(0)

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        keys, values = self._keys_values[2 * layer], self._keys_values[2 * layer + 1]
        heads_first = queries.permute(1, 2, 0, 3)
        result = scaled_dot_product_attention(heads_first, keys, values, self._mask, is_causal=self._mask is None)
        return result.permute(2, 0, 1, 3).reshape(self.rows, -1)


class RowAttention:
    """A generated position: it sees the whole `stretch` `[layer, 2, kv_head, token, head_dim]`."""

    rows = 1

    def __init__(self, stretch: torch.Tensor) -> None:
        self._keys_values = stretch.unsqueeze(3).flatten(0, 1).unbind(0)

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        keys, values = self._keys_values[2 * layer], self._keys_values[2 * layer + 1]
        # [kv_head, 1, group, head_dim]: the group is folded into the query axis, keys are read once for all of it.
        folded = queries.permute(1, 0, 2, 3)
        return scaled_dot_product_attention(folded, keys, values).reshape(1, -1)


class CausalMask:
    """Every mask a chunk may need is a part of one: zeros, then a triangle that hides the future."""

    def __init__(self, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        self._positions = positions
        self._mask = torch.zeros(PREFILL_CHUNK, positions + PREFILL_CHUNK, dtype=dtype, device=device)
        self._mask[:, positions:].fill_(float("-inf")).triu_(1)

    def part(self, start: int, stop: int) -> torch.Tensor | None:
        """For rows `start` .. `stop` over tokens `0` .. `stop`; None where the kernels have a faster way."""
        if start == 0:
            return None
        return self._mask[: stop - start, self._positions - start : self._positions + stop - start]
