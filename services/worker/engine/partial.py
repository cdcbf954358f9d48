"""Rows part of the way through the layers: requests that are run one layer at a time, or a batch at some stage."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from livescale.services.worker.batch import MAX_BATCH_ROWS, NO_BYTES, Piece


@dataclass(frozen=True, eq=False)
class Passed:
    """A batch after some of the model's blocks: its activation `[row, hidden]` as bytes, or after the last the tokens
    of its draws."""

    activation: memoryview
    tokens: list[int]


class Partial:
    """All rows of a request, as `pieces` of it in order; `done` layers were run.

    `activation` is what the next layer takes, `[position, hidden]` as bytes. It changes with every layer.
    """

    def __init__(self, pieces: Sequence[Piece], done: int = 0) -> None:
        self.done = done
        self.pieces = pieces
        self.activation = NO_BYTES

    def begin(self, row_bytes: int) -> None:
        """Have room for the activation."""
        self.activation = memoryview(bytearray(row_bytes * sum(len(piece.tokens) for piece in self.pieces)))

    def parts(self) -> Iterator[tuple[Piece, memoryview]]:
        """Of each piece the activations `[row, hidden]` as bytes, to be read and written."""
        row_bytes = len(self.activation) // sum(len(piece.tokens) for piece in self.pieces)
        start = 0
        for piece in self.pieces:
            stop = start + len(piece.tokens) * row_bytes
            yield piece, self.activation[start:stop]
            start = stop


@dataclass(frozen=True)
class Slab:
    """Rows of one or several requests that run together, and of each piece its activations."""

    pieces: list[Piece]
    activations: list[memoryview]


def slabs(partials: Sequence[Partial], row_bytes: int) -> Iterator[Slab]:
    """All rows of these, those of a request in order, no more together than a batch may have. Raises ValueError for
    requests that stand at different layers."""
    if len({partial.done for partial in partials}) > 1:
        raise ValueError(f"layers {[partial.done for partial in partials]} are next: only one can be run")
    chosen: list[tuple[Piece, memoryview]] = []
    rows = 0
    for partial in partials:
        if not partial.activation:
            partial.begin(row_bytes)
        for piece, activation in partial.parts():
            if rows + len(piece.tokens) > MAX_BATCH_ROWS:
                yield _slab(chosen)
                chosen, rows = [], 0
            chosen.append((piece, activation))
            rows += len(piece.tokens)
    yield _slab(chosen)


def _slab(chosen: Sequence[tuple[Piece, memoryview]]) -> Slab:
    return Slab([piece for piece, _ in chosen], [activation for _, activation in chosen])
