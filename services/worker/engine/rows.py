"""What the engine's steps must know of a batch's rows, gathered once a step and not once a layer."""

from collections.abc import Sequence
from itertools import accumulate

import torch

from livescale.services.worker.batch import MAX_BATCH_ROWS, Piece
from livescale.services.worker.engine.attention import Attention


class Rows:
    """The rows of `pieces`, in order.

    `token_ids` `[row]`; `drawn`: the rows after which a token is chosen, as an index.
    """

    def __init__(self, pieces: Sequence[Piece], attention: Attention, device: torch.device) -> None:
        token_ids = [token for piece in pieces for token in piece.tokens]
        if not 1 <= len(token_ids) <= MAX_BATCH_ROWS:
            raise ValueError(f"a batch has 1 to {MAX_BATCH_ROWS} rows, not {len(token_ids)}")
        ends = accumulate(len(piece.tokens) for piece in pieces)
        drawn = [end - 1 for piece, end in zip(pieces, ends, strict=True) if piece.draw is not None]
        self.count = len(token_ids)
        self.token_ids = torch.tensor(token_ids, device=device)
        # Where only decodes run these are all.
        self.drawn = slice(None) if len(drawn) == self.count else torch.tensor(drawn, dtype=torch.long)
        self.attend = attention.over(pieces)
