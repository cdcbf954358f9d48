"""At which rate a worker sends KV. Pure; times are seconds of one monotonic clock."""

from livescale.services.worker.disaggregation.pieces import LEAST_PIECE_BYTES

WEIGHT = 0.2  # of the last sample in the average


class KvSendRate:
    """Tokens a second that leave while anything is sent, whatever is sent at the same time. It is a moving average over
    samples of `LEAST_PIECE_BYTES` at least."""

    def __init__(self) -> None:
        self.tokens_per_second: float | None = None
        self._sends = 0
        self._since = 0.0
        self._busy = 0.0
        self._tokens = 0.0
        self._bytes = 0

    def begin(self, now: float) -> None:
        """Note that a piece is being sent from now on."""
        if not self._sends:
            self._since = now
        self._sends += 1

    def end(self, now: float, size_bytes: int = 0, tokens: float = 0.0) -> None:
        """Note that a piece was sent, or with nothing that it failed."""
        self._sends -= 1
        self._busy, self._since = self._busy + now - self._since, now
        self._bytes, self._tokens = self._bytes + size_bytes, self._tokens + tokens
        if self._bytes >= LEAST_PIECE_BYTES and self._busy > 0:
            rate, known = self._tokens / self._busy, self.tokens_per_second
            self.tokens_per_second = rate if known is None else known + WEIGHT * (rate - known)
            self._busy, self._tokens, self._bytes = 0.0, 0.0, 0
