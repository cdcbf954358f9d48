"""What the layers must know of a batch's rows, gathered once a step and not once a layer."""

from collections.abc import Iterator, Sequence

import torch

from services.worker.batch import MAX_BATCH_ROWS, Piece
from services.worker.engine.attention import Attention, CausalMask, ChunkAttention, RowAttention
from services.worker.engine.kv_store import KvStore
from services.worker.engine.parameters import MIN_ROWS
from services.worker.engine.rope import RopeTable


class Geometry:
    """What stays the same from step to step: the KV cache, the tables of positions, the query heads to a KV head."""

    def __init__(self, store: KvStore, rope: RopeTable, mask: CausalMask, group: int) -> None:
        self.store = store
        self.rope = rope
        self.mask = mask
        self.group = group

    def attentions(self, piece: Piece) -> Iterator[Attention]:
        if piece.decode:
            for position in range(piece.start, piece.stop):
                yield RowAttention(self.store.stretch(piece.blocks, position + 1))
        else:
            stretch = self.store.stretch(piece.blocks, piece.stop)
            mask = self.mask.part(piece.start, piece.stop)
            yield ChunkAttention(stretch, len(piece.tokens), self.group, mask)


class Rows:
    """The rows of `pieces`, in order.

    `token_ids`, `slots` (places in the KV cache) `[row]`; `drawn`: the rows after which a token is chosen.
    """

    def __init__(self, pieces: Sequence[Piece], geometry: Geometry) -> None:
        count = sum(len(piece.tokens) for piece in pieces)
        if not 1 <= count <= MAX_BATCH_ROWS:
            raise ValueError(f"a batch has 1 to {MAX_BATCH_ROWS} rows, not {count}")
        block_tokens = geometry.store.block_tokens
        positions = [position for piece in pieces for position in range(piece.start, piece.stop)]
        offsets = [piece.blocks.start * block_tokens for piece in pieces for _ in piece.tokens]
        ends = torch.tensor([len(piece.tokens) for piece in pieces]).cumsum(0)
        self.count = count
        device = geometry.store.cache.device
        self.token_ids = torch.tensor([token for piece in pieces for token in piece.tokens], device=device)
        self.slots = torch.tensor(positions, device=device) + torch.tensor(offsets, device=device)
        padded = torch.tensor(positions + [0] * (MIN_ROWS - count), device=device)
        self.cosines, self.sines = geometry.rope.at(padded)
        self.drawn = ends[torch.tensor([piece.draw is not None for piece in pieces])] - 1
        self.attentions = [attention for piece in pieces for attention in geometry.attentions(piece)]
        self.lengths = [attention.rows for attention in self.attentions]
