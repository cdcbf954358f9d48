"""What stages are told of a batch, and what they refuse."""

from typing import Any

import msgspec
import pytest

from services.worker.batch import Draw, Piece
from services.worker.engine.sizes import activation_bytes
from services.worker.limits import Limits
from services.worker.pipeline.wire import batch_pieces, fill_pieces, stage_pieces
from shared.messages.pipelines import StageBatch, StageFill
from shared.messages.requests import Sampling
from tests.worker.engine.made_up import BLOCK_TOKENS, VOCABULARY, manifest

MANIFEST = manifest()
LIMITS = Limits(4, 512, 256, VOCABULARY, 20, BLOCK_TOKENS)
PIECES = (
    Piece("a", (5, 6, 7), 0, range(2, 4), False),
    Piece("b", (8,), 40, range(4, 7), True, Draw(Sampling(temperature=0.5, seed=9), 3, (1,), (1, 2))),
)


def batch(*pieces: Piece, **fields: Any) -> StageBatch:
    rows = sum(len(piece.tokens) for piece in pieces)
    defaults = {"stage": 1, "block_tokens": BLOCK_TOKENS, "activation_bytes": activation_bytes(MANIFEST, rows)}
    return StageBatch(pipeline="p", step=1, pieces=stage_pieces(pieces), **{**defaults, **fields})


def test_a_batch_arrives_as_it_was_sent() -> None:
    sent = msgspec.msgpack.encode(batch(*PIECES))
    assert batch_pieces(msgspec.msgpack.decode(sent, type=StageBatch), MANIFEST, LIMITS) == PIECES


def test_the_first_stage_gets_no_activation() -> None:
    assert batch_pieces(batch(*PIECES, stage=0, activation_bytes=0), MANIFEST, LIMITS) == PIECES
    with pytest.raises(ValueError, match="activation_bytes: 8, 4 rows have 0"):
        batch_pieces(batch(*PIECES, stage=0, activation_bytes=8), MANIFEST, LIMITS)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (batch(), "pieces: they have 0 rows"),
        (batch(*[PIECES[0]] * 700), "pieces: they have 2100 rows"),
        (batch(*PIECES, block_tokens=32), "block_tokens: KV blocks have 16 tokens here, not 32"),
        (batch(*PIECES, activation_bytes=7), "activation_bytes: 7, 4 rows have 192"),
        (batch(Piece("a", (5,), 48, range(4, 7), True)), "positions before 49 of a do not fit into blocks 4 .. 6"),
        (batch(Piece("a", (5,), 0, range(19, 21), False)), "blocks 19 .. 20 of 20"),
        (batch(Piece("a", (5,), 256, range(0, 20), True)), "positions before 257"),
        (batch(Piece("a", (VOCABULARY,), 0, range(1), False)), "token id 509 is not in the vocabulary"),
        (batch(Piece("a", (1,), 0, range(1), False, Draw(Sampling(), 0, (600,)))), "token id 600"),
    ],
)
def test_what_could_not_be_run_is_refused(wrong: StageBatch, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        batch_pieces(wrong, MANIFEST, LIMITS)


def test_what_could_not_be_filled_is_refused() -> None:
    pieces = stage_pieces(PIECES)
    assert fill_pieces(StageFill(worker="w", pieces=pieces[:1]), LIMITS) == [PIECES[0]]
    with pytest.raises(ValueError, match="fills: they have 2100 rows, at most 2048"):
        fill_pieces(StageFill(worker="w", pieces=pieces[:1] * 700), LIMITS)
    with pytest.raises(ValueError, match=r"blocks 19 \.\. 20 of 20"):
        fill_pieces(StageFill(worker="w", pieces=stage_pieces([Piece("a", (5,), 0, range(19, 21), False)])), LIMITS)


def test_a_chunk_that_is_none_is_refused() -> None:
    [told] = batch(PIECES[0]).pieces
    wrong = msgspec.structs.replace(batch(PIECES[0]), pieces=[msgspec.structs.replace(told, start=5)])
    with pytest.raises(ValueError, match=r"positions 5 \.\. 8 are not one chunk"):
        batch_pieces(wrong, MANIFEST, LIMITS)
