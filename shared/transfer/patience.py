"""How long a chunk is waited for. Pure: time is an argument."""

from dataclasses import dataclass

from shared.transfer.chunks import Chunk


@dataclass(frozen=True)
class Patience:
    """`first` seconds for a block's first chunks, which may still be on a disk or on their way to the sender; for
    the others `factor` times what they should take, but at least `least`."""

    first: float = 30.0
    least: float = 1.0
    factor: float = 8.0


class Pace:
    """Measures how fast chunks move with `window` of them under way, and says how long to wait for one."""

    def __init__(self, patience: Patience, window: int) -> None:
        self._patience = patience
        self._window = window
        self._moved = 0
        self._began = 0.0
        self._seconds = 0.0

    def moved(self, now: float) -> None:
        """A chunk arrived, or was taken by the receiver."""
        if self._moved == 0:
            self._began = now
        self._moved += 1
        self._seconds = (now - self._began) / self._moved

    def timeout(self, chunk: Chunk) -> float:
        """Seconds for a chunk that was just put in line behind at most `window - 1` others."""
        if chunk.index < self._window:
            return self._patience.first
        return max(self._patience.least, self._patience.factor * self._window * self._seconds)
