"""How fast the engine is: moving averages of tokens per second, None until measured."""

from collections.abc import Sequence

from services.worker.batch import Batch, Piece

# What a step counts for after the next one; about the last ten steps matter.
KEPT = 0.9
# A step counts as prefill when so much of it is: decodes that ride along hardly change its time.
PREFILL_SHARE = 0.75


class Rate:
    """Tokens per second over the last steps, long steps counting for more."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def observe(self, tokens: float, seconds: float) -> None:
        self._tokens = KEPT * self._tokens + tokens
        self._seconds = KEPT * self._seconds + seconds

    @property
    def per_second(self) -> float | None:
        return self._tokens / self._seconds if self._seconds > 0 else None


class Rates:
    """Prefill and decode apart. Steps that are neither mostly the one nor wholly the other say nothing of either."""

    def __init__(self) -> None:
        self._prefill = Rate()
        self._decode = Rate()
        self._part = Rate()
        self.fetch_tokens_per_second: float | None = None  # KV from host memory

    @property
    def part_tokens_per_second(self) -> float | None:
        """Prefill through the whole model, by what parts of it took."""
        return self._part.per_second

    @property
    def prefill_tokens_per_second(self) -> float | None:
        return self._prefill.per_second

    @property
    def decode_tokens_per_second(self) -> float | None:
        return self._decode.per_second

    def observe(self, batch: Batch, seconds: float) -> None:
        """Learn from a step that took `seconds`. One whose rows came in at later layers says nothing."""
        if any(piece.layer for piece in batch.pieces):
            return
        rows = batch.prefill_rows + batch.decode_rows
        if batch.prefill_rows == 0:
            self._decode.observe(rows, seconds)
        elif batch.prefill_rows >= PREFILL_SHARE * rows:
            self._prefill.observe(rows, seconds)

    def observe_part(self, pieces: Sequence[Piece], share: float, seconds: float) -> None:
        """Learn from `pieces`, run through such a share of the model's layers."""
        rows = sum(len(piece.tokens) for piece in pieces)
        if share and sum(len(piece.tokens) for piece in pieces if not piece.decode) >= PREFILL_SHARE * rows:
            self._part.observe(rows * share, seconds)


def layers_share(blocks: range, layers: int) -> float:
    """Of a model's layers, those that are among its `blocks`: the first is the embedding, the last the head."""
    return len(range(max(blocks.start, 1), min(blocks.stop, layers + 1))) / layers
