"""How long steps take by a latency, whole or a few layers of them: each layer its share (pure)."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from livescale.services.worker.batch import Batch, Piece
from livescale.shared.model.latency import EMBEDDING_SHARE, HEAD_SHARE, Latency, Work


def work_of(pieces: Iterable[Piece]) -> Work:
    """Chunks of a prompt add up to what the prompt in one piece would be."""
    tokens = squares = rows = kv_tokens = 0
    for piece in pieces:
        if piece.decode:
            rows += len(piece.tokens)
            kv_tokens += sum(range(piece.start + 1, piece.stop + 1))
        else:
            tokens += len(piece.tokens)
            squares += piece.stop**2 - piece.start**2
    return Work(tokens, squares, rows, kv_tokens)


def embedding_seconds(latency: Latency, pieces: Sequence[Piece]) -> float:
    return EMBEDDING_SHARE * latency.seconds(work_of(pieces))


def layer_seconds(latency: Latency, pieces: Sequence[Piece], layers: int) -> float:
    """One of a model's `layers` layers."""
    return (1 - EMBEDDING_SHARE - HEAD_SHARE) / layers * latency.seconds(work_of(pieces))


def blocks_seconds(latency: Latency, pieces: Sequence[Piece], blocks: range, layers: int) -> float:
    """A part of the model, of which the first block is the embedding and the last the head."""
    seconds = layer_seconds(latency, pieces, layers) * len(range(max(blocks.start, 1), min(blocks.stop, layers + 1)))
    if blocks.start == 0:
        seconds += embedding_seconds(latency, pieces)
    if blocks.stop == layers + 2:
        seconds += HEAD_SHARE * latency.seconds(work_of(pieces))
    return seconds


def step_seconds(latency: Latency, batch: Batch, layers: int) -> float:
    """All layers that are left of each piece, embedding and head: rows join at the layer at which they come in."""
    starts = sorted({piece.layer for piece in batch.pieces})
    seconds = HEAD_SHARE * latency.seconds(work_of(batch.pieces))
    if starts[0] == 0:
        seconds += embedding_seconds(latency, [piece for piece in batch.pieces if piece.layer == 0])
    for start, end in pairwise([*starts, layers]):
        joined = [piece for piece in batch.pieces if piece.layer <= start]
        seconds += (end - start) * layer_seconds(latency, joined, layers)
    return seconds
