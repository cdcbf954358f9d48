"""Attention by the compiled kernels: turning, writing into the cache and attending are one call a layer."""

from array import array
from collections.abc import Sequence
from functools import cached_property

import torch

from livescale.services.worker.batch import Piece
from livescale.services.worker.engine.kernels.contract import TYPES, Kernels, find_compiled
from livescale.services.worker.engine.kv_store import KvStore
from livescale.services.worker.engine.parameters import DTYPES
from livescale.services.worker.engine.rope import RopeTable

RUN_NUMBERS = 4  # as kernels.h has them


class CompiledAttention:
    """Of one model, for requests of `positions` tokens; `group`: query heads to a KV head."""

    def __init__(self, kernels: Kernels, store: KvStore, rope: RopeTable, group: int, positions: int) -> None:
        compiled = find_compiled()
        assert compiled is not None
        self.attend = kernels.attend
        self.dtype = store.cache.dtype
        self.type = TYPES[DTYPES[self.dtype]]
        self._store = store
        self._rope = rope
        self._positions = positions
        self._run_rows = compiled.LAYER_ROWS
        _, _, kv_heads, slots, head_dim = store.cache.shape
        self.width = kv_heads * group * head_dim
        # `Attention` of kernels.h, of each layer: looked up once, as it takes longer than the call.
        shape, tables = (slots, kv_heads, group, head_dim), (rope.cosines.data_ptr(), rope.sines.data_ptr())
        caches = [[part.data_ptr() for part in layer.unbind(0)] for layer in store.cache.unbind(0)]
        self.layers = [array("q", (*cache, *shape, *tables)) for cache in caches]
        self.addresses = [layer.buffer_info()[0] for layer in self.layers]

    def over(self, pieces: Sequence[Piece]) -> "CompiledStep":
        """Raises ValueError for pieces that the cache or the tables have no room for: the kernels do not look."""
        # An array and no tensor, which would take longer to make than all that is in it.
        runs, rows = array("q"), 0
        for piece in pieces:
            self._check(piece)
            slot = piece.blocks.start * self._store.block_tokens
            for start in range(piece.start, piece.stop, self._run_rows):
                runs.extend((min(piece.stop - start, self._run_rows), slot, start, int(piece.decode)))
            rows += len(piece.tokens)
        return CompiledStep(self, runs, rows)

    def _check(self, piece: Piece) -> None:
        room = min(self._positions, len(piece.blocks) * self._store.block_tokens)
        is_in_cache = piece.blocks.start >= 0 and piece.blocks.stop <= self._store.blocks
        if not (is_in_cache and 0 <= piece.start < piece.stop <= room):
            raise ValueError(f"{piece.request_id}: positions {piece.start} .. {piece.stop} are not in {piece.blocks}")


class CompiledStep:
    """`runs`: rows, slot of position 0, first position, whether generated, of each."""

    def __init__(self, attention: CompiledAttention, runs: "array[int]", rows: int) -> None:
        self._attention = attention
        self._numbers = runs
        self.runs = runs.buffer_info()[0], len(runs) // RUN_NUMBERS
        self._rows = rows

    @cached_property
    def _out(self) -> torch.Tensor:
        """Used anew by every layer."""
        return torch.zeros(self._rows, self._attention.width, dtype=self._attention.dtype)

    def __call__(self, layer: int, projected: torch.Tensor) -> torch.Tensor:
        attention, out = self._attention, self._out
        projected_and_out = projected.data_ptr(), projected.stride(0), out.data_ptr()
        attention.attend(attention.type, *projected_and_out, *self.runs, attention.addresses[layer])
        return out
