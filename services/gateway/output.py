"""One choice of an answer: from tokens to text, stop strings included."""

from collections.abc import Sequence
from dataclasses import dataclass

from livescale.services.gateway.answers import StopReason
from livescale.services.gateway.detokenize import Decode, Detokenizer
from livescale.services.gateway.sequence import Fresh
from livescale.services.gateway.stops import Scanned, StopScanner


@dataclass(frozen=True)
class Piece:
    """What a client gets next. With a `finish_reason` it is the last. `text` may lag behind `token_ids`."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: StopReason | None = None


class Output:
    """The text of one request. `stop_token_ids` end it without being part of the text, `stops` likewise."""

    def __init__(
        self,
        decode: Decode,
        prompt: Sequence[int],
        *,
        stops: Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = Detokenizer(decode, prompt)
        self._scanner = StopScanner(stops)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._min_tokens = min_tokens
        self.tokens = 0

    def feed(self, fresh: Fresh) -> Piece:
        """The next piece; its reason is "stop" as soon as a stop string is complete, whatever comes behind it."""
        text = ""
        for position, token_id in enumerate(fresh.token_ids, start=1):
            self.tokens += 1
            last = position == len(fresh.token_ids)
            if last and fresh.finish_reason == "stop" and token_id in self._stop_token_ids:
                break
            scanned = self._scan(self._detokenizer.feed(token_id))
            text += scanned.text
            if scanned.stop is not None:
                return Piece(text, fresh.token_ids[:position], "stop")
        if fresh.finish_reason is None:
            return Piece(text, fresh.token_ids)
        return Piece(text + self._rest(), fresh.token_ids, "stop" if fresh.finish_reason == "stop" else "length")

    def _scan(self, text: str) -> Scanned:
        return Scanned(text) if self.tokens <= self._min_tokens else self._scanner.feed(text)

    def _rest(self) -> str:
        scanned = self._scan(self._detokenizer.flush())
        return scanned.text if scanned.stop is not None else scanned.text + self._scanner.flush()
