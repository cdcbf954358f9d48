"""Who comes first, and how prompts share the rows of a step: short ones do not wait for long ones, and nobody waits for
ever. Pure."""

from collections.abc import Iterable, Iterator

from livescale.services.worker.batch import PREFILL_CHUNK, Piece
from livescale.services.worker.sequence import Sequence
from livescale.shared.policy.priority_queue import queue_position


def order(sequence: Sequence) -> tuple[int, int]:
    """Its place in the line; of equal ones the earlier goes first."""
    return queue_position(sequence.arrival, sequence.request.priority), sequence.arrival


def share_rows(prefilling: Iterable[Sequence], rows: int, cut: int = PREFILL_CHUNK) -> Iterator[tuple[Sequence, Piece]]:
    """What of these runs in a step of so many rows, at least a chunk, or of chunks that are `cut` two cuts.

    A chunk is for the first in the line, or half of few rows, so that it gains in every step. All other rows go by
    priority, then to whoever has least left: so a short prompt waits for a chunk of a long one and not for all of it,
    and on average they wait as little as can be.
    """
    line = list(prefilling)
    first = min(line, key=order, default=None)
    reserved = 0 if first is None else min(PREFILL_CHUNK, first.left, max(cut, rows // 2))
    for sequence in sorted(line, key=_eagerness):
        if sequence is first:
            reserved = 0
        for piece in sequence.pieces(rows - reserved, cut):
            rows -= len(piece.tokens)
            yield sequence, piece


def _eagerness(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.request.priority, sequence.left, sequence.arrival
