"""Stop strings in a text that arrives in pieces: found across pieces, and nothing of them is ever emitted."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scanned:
    """`text` is safe to emit. `stop` is the stop string that ended the text, None while it goes on."""

    text: str
    stop: str | None = None


class StopScanner:
    """Looks for the stop string that is complete first; of those, the one that began first.

    So the result does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, piece: str) -> Scanned:
        """Text that may turn out to begin a stop string is held back. Do not feed again after a stop."""
        if not self._stops:
            return Scanned(piece)
        text = self._held + piece
        found = min(
            ((start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0), default=None
        )
        if found is not None:
            _, start, stop = found
            self._held = ""
            return Scanned(text[:start], stop)
        keep = self._begun(text)
        self._held = text[len(text) - keep :]
        return Scanned(text[: len(text) - keep])

    def flush(self) -> str:
        """The text is over: what was held back began no stop string."""
        held, self._held = self._held, ""
        return held

    def _begun(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string begins."""
        return max((_overlap(text, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
