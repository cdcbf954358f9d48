"""What the engine's steps must know of a batch's rows, gathered once a step and not once a layer."""

from collections.abc import Sequence

import torch

from services.worker.batch import MAX_BATCH_ROWS, Piece
from services.worker.engine.attention import Attention


class Rows:
    """The rows of `pieces`, in order.

    `token_ids` `[row]`; `drawn`: the rows after which a token is chosen.
    """

    def __init__(self, pieces: Sequence[Piece], attention: Attention, device: torch.device) -> None:
        count = sum(len(piece.tokens) for piece in pieces)
        if not 1 <= count <= MAX_BATCH_ROWS:
            raise ValueError(f"a batch has 1 to {MAX_BATCH_ROWS} rows, not {count}")
        ends = torch.tensor([len(piece.tokens) for piece in pieces]).cumsum(0)
        self.count = count
        self.token_ids = torch.tensor([token for piece in pieces for token in piece.tokens], device=device)
        self.drawn = ends[torch.tensor([piece.draw is not None for piece in pieces])] - 1
        self.attend = attention.over(pieces)
