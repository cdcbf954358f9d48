"""Attention by the compiled kernels: turning, writing into the cache and attending are one call a layer."""

from collections.abc import Sequence

import torch

from services.worker.batch import Piece
from services.worker.engine.kernels.contract import Kernels
from services.worker.engine.kv_store import KvStore
from services.worker.engine.parameters import MIN_ROWS
from services.worker.engine.rope import RopeTable


class CompiledAttention:
    """Of one model in bfloat16, for requests of `positions` tokens; `group`: query heads to a KV head."""

    def __init__(self, kernels: Kernels, store: KvStore, rope: RopeTable, group: int, positions: int) -> None:
        self._store = store
        self._positions = positions
        _, _, kv_heads, slots, head_dim = store.cache.shape
        self._width = kv_heads * group * head_dim
        self._attend = kernels.attend
        self._shape = slots, kv_heads, group, head_dim
        self._rope = rope
        self._scratch = torch.empty(kernels.scratch_floats(positions, head_dim))

    def over(self, pieces: Sequence[Piece]) -> "CompiledStep":
        """Raises ValueError for pieces that the cache or the tables have no room for: the kernels do not look."""
        runs, first = [], 0
        for piece in pieces:
            room = min(self._positions, len(piece.blocks) * self._store.block_tokens)
            if not (
                0 <= piece.start < piece.stop <= room
                and 0 <= piece.blocks.start < piece.blocks.stop <= self._store.blocks
            ):
                raise ValueError(
                    f"{piece.request_id}: positions {piece.start} .. {piece.stop} are not in {piece.blocks}"
                )
            slot = piece.blocks.start * self._store.block_tokens
            runs.append((first, len(piece.tokens), slot, piece.start, int(piece.decode)))
            first += len(piece.tokens)
        return CompiledStep(
            self, torch.tensor(runs), torch.zeros(max(first, MIN_ROWS), self._width, dtype=torch.bfloat16)
        )

    def attend(self, layer: int, projected: torch.Tensor, runs: torch.Tensor, out: torch.Tensor) -> None:
        keys, values = self._store.cache[layer].unbind(0)
        self._attend(
            projected.data_ptr(),
            projected.stride(0),
            out.data_ptr(),
            runs.data_ptr(),
            len(runs),
            keys.data_ptr(),
            values.data_ptr(),
            *self._shape,
            self._rope.cosines.data_ptr(),
            self._rope.sines.data_ptr(),
            self._scratch.data_ptr(),
        )


class CompiledStep:
    """`runs` `[piece, 5]`: first row, rows, slot of position 0, first position, whether generated. `out` is used anew
    by every layer."""

    def __init__(self, attention: CompiledAttention, runs: torch.Tensor, out: torch.Tensor) -> None:
        self._attention = attention
        self._runs = runs
        self._out = out

    def __call__(self, layer: int, projected: torch.Tensor) -> torch.Tensor:
        self._attention.attend(layer, projected, self._runs, self._out)
        return self._out
