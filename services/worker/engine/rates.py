"""How fast the engine is: moving averages of tokens per second, None until measured."""

from services.worker.batch import Batch

# What a step counts for after the next one; about the last ten steps matter.
KEPT = 0.9
# A step counts as prefill when so much of it is: decodes that ride along hardly change its time.
PREFILL_SHARE = 0.75


class Rate:
    """Tokens per second over the last steps, long steps counting for more."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
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
        self.fetch_tokens_per_second: float | None = None  # KV from host memory

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
