"""What stages are told of a batch, and what they refuse."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from livescale.services.worker.pipeline.wire import (
    PastWindow,
    batch_pieces,
    fill_pieces,
    kv_slices,
    kv_spans,
    layers_of,
    stage_pieces,
    withheld,
)
from livescale.services.worker.scheduling.batch import (
    KvSlice,
    Past,
    ScheduledChunk,
    Scoring,
    TokenSampling,
    Withheld,
    activation_bytes,
)
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.shared.bus.codec import MAX_PAYLOAD_BYTES
from livescale.shared.messages.model_parallel import (
    KvSpan,
    MoveKv,
    Pipeline,
    Stage,
    StageBatch,
    StageDone,
    StageFill,
    StagePiece,
)
from livescale.shared.messages.requests import Sampling
from livescale.shared.messages.transfers import Node
from tests.worker.engine.made_up import BLOCK_TOKENS, VOCABULARY, manifest

MANIFEST = manifest()
LIMITS = SchedulerLimits(4, 512, 256, VOCABULARY, 20, BLOCK_TOKENS)
PIECES = (
    ScheduledChunk("a", (5, 6, 7), 0, range(2, 4), False),
    ScheduledChunk("b", (8,), 40, range(4, 7), True, TokenSampling(Sampling(temperature=0.5, seed=9), 3, (1,), (1, 2))),
)


def batch(*pieces: ScheduledChunk, **fields: Any) -> StageBatch:
    rows = sum(len(piece.tokens) for piece in pieces)
    defaults = {"stage": 1, "block_tokens": BLOCK_TOKENS, "activation_bytes": activation_bytes(MANIFEST, rows)}
    return StageBatch(pipeline="p", step=1, pieces=stage_pieces(pieces), **{**defaults, **fields})


def test_a_batch_arrives_as_it_was_sent() -> None:
    sent = msgspec.msgpack.encode(batch(*PIECES))
    assert batch_pieces(msgspec.msgpack.decode(sent, type=StageBatch), MANIFEST, LIMITS) == PIECES


def test_the_last_stage_gets_the_tokens_that_the_choice_depends_on() -> None:
    params = Sampling(repetition_penalty=1.1, logit_bias=[(3, 1.0)], bad_words=[[1, 2]], logprobs=2)
    sampling = TokenSampling(params, 3, past=Past((4, 5), (6, 6, 7)))
    piece = ScheduledChunk("b", (8,), 40, range(4, 7), True, sampling)
    sent = msgspec.msgpack.encode(batch(piece))
    assert batch_pieces(msgspec.msgpack.decode(sent, type=StageBatch), MANIFEST, LIMITS) == (piece,)
    by_grammar = structs.replace(piece, sampling=structs.replace(sampling, params=Sampling(grammar="start: /a+/")))
    assert batch_pieces(batch(by_grammar), MANIFEST, LIMITS) == (by_grammar,)
    unknown = structs.replace(sampling, params=Sampling(logit_bias=[(VOCABULARY, 1.0)]), past=Past())
    with pytest.raises(ValueError, match=f"token id {VOCABULARY} is not in the vocabulary"):
        batch_pieces(batch(structs.replace(piece, sampling=unknown)), MANIFEST, LIMITS)


def test_a_stage_is_told_which_tokens_follow_where_their_log_probabilities_are_asked_for() -> None:
    piece = ScheduledChunk("a", (5, 6, 7), 0, range(2, 4), False, scoring=Scoring((6, 7), 3))
    sent = msgspec.msgpack.encode(batch(piece))
    assert batch_pieces(msgspec.msgpack.decode(sent, type=StageBatch), MANIFEST, LIMITS) == (piece,)
    longer = structs.replace(piece, scoring=Scoring((6, 7, 8, 9), 3))
    with pytest.raises(ValueError, match="4 tokens follow 3 of a"):
        batch_pieces(batch(longer), MANIFEST, LIMITS)


def test_the_leader_is_told_why_a_place_has_no_token_and_whose_fault_that_is() -> None:
    done = StageDone(pipeline="p", step=1, tokens=[0, 0], withheld=[(0, ""), (1, "no")], codes=[422, 503])
    assert withheld(done) == {0: Withheld(), 1: Withheld("no", 503)}
    assert withheld(structs.replace(done, codes=[])) == {0: Withheld(), 1: Withheld("no", 422)}


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
        (
            batch(ScheduledChunk("a", (5,), 48, range(4, 7), True)),
            "positions before 49 of a do not fit into blocks 4 .. 6",
        ),
        (batch(ScheduledChunk("a", (5,), 0, range(19, 21), False)), "blocks 19 .. 20 of 20"),
        (batch(ScheduledChunk("a", (5,), 256, range(0, 20), True)), "positions before 257"),
        (batch(ScheduledChunk("a", (VOCABULARY,), 0, range(1), False)), "token id 509 is not in the vocabulary"),
        (batch(ScheduledChunk("a", (1,), 0, range(1), False, TokenSampling(Sampling(), 0, (600,)))), "token id 600"),
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
        fill_pieces(
            StageFill(worker="w", pieces=stage_pieces([ScheduledChunk("a", (5,), 0, range(19, 21), False)])), LIMITS
        )


def order(*spans: tuple[int, int, int, int]) -> MoveKv:
    told = [KvSpan(first_block=at, blocks=blocks, start=start, stop=stop) for at, blocks, start, stop in spans]
    return MoveKv(pipeline="p", number=1, worker="w", spans=told)


def test_kv_of_pieces_is_moved_in_all_layers_of_a_stage_stretch_by_stretch() -> None:
    assert kv_spans(PIECES) == order((2, 2, 0, 3), (4, 3, 40, 41)).spans
    assert kv_slices(order((2, 2, 0, 3), (4, 3, 40, 41)), [range(1, 3), range(4, 5)], LIMITS) == [
        KvSlice(range(2, 4), 0, 3, range(1, 3)),
        KvSlice(range(4, 7), 40, 41, range(1, 3)),
        KvSlice(range(2, 4), 0, 3, range(4, 5)),
        KvSlice(range(4, 7), 40, 41, range(4, 5)),
    ]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (order(), "spans: they have 0 positions"),
        (order((0, 200, 0, 3_000)), "spans: they have 3000 positions, 1 to 2048"),
        (order((0, 2, 5, 5), (0, 2, 0, 9)), r"positions 5 \.\. 4 do not fit"),
        (order((0, 2, 0, 33)), r"positions 0 \.\. 32 do not fit into blocks 0 \.\. 1 of 20"),
        (order((19, 2, 0, 3)), r"do not fit into blocks 19 \.\. 20 of 20"),
    ],
)
def test_kv_that_is_not_here_is_refused(wrong: MoveKv, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        kv_slices(wrong, [range(1)], LIMITS)


def test_embedding_and_head_are_no_layers() -> None:
    def node(id: str) -> Node:
        return Node(id=id, place="worker", address=b"")

    cut = [("a", 0, 1), ("b", 1, 3), ("a", 3, 4), ("b", 4, 6), ("c", 6, 7)]
    stages = [Stage(node=node(id), first=first, stop=stop) for id, first, stop in cut]
    told = Pipeline(id="p", plan_id="q", model="m", version="v", stages=stages, kv_blocks=1, epoch=1)
    assert [layers_of(told, worker) for worker in "abc"] == [[range(2, 3)], [range(2), range(3, 5)], []]


def test_a_chunk_that_is_none_is_refused() -> None:
    [told] = batch(PIECES[0]).pieces
    wrong = msgspec.structs.replace(batch(PIECES[0]), pieces=[msgspec.structs.replace(told, start=5)])
    with pytest.raises(ValueError, match=r"positions 5 \.\. 8 are no chunk"):
        batch_pieces(wrong, MANIFEST, LIMITS)


PENALIZED = Sampling(repetition_penalty=1.2)


def piece(request: int, generated: int, prompt: int = 3) -> StagePiece:
    """A piece of a request that has so many tokens. What they are depends on the request alone."""
    return StagePiece(
        request_id=f"r{request}",
        tokens=[1],
        start=5,
        first_block=0,
        blocks=1,
        decode=True,
        sampling=PENALIZED,
        index=generated,
        prompt=[request * 100_000 + at for at in range(prompt)],
        generated=[request * 100_000 + at for at in range(generated)],
    )


def sent(pieces: list[StagePiece]) -> list[StagePiece]:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(pieces), type=list[StagePiece])


STEPS = st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), unique_by=lambda one: one[0]), max_size=30)


@given(STEPS, st.sampled_from([10, 40, 1_000]), st.sets(st.integers(0, 29)))
def test_the_last_stage_has_what_the_leader_meant(
    steps: list[list[tuple[int, int]]], most_tokens: int, again: set[int]
) -> None:
    leader, last, tokens = PastWindow(most_tokens), PastWindow(most_tokens), dict[int, int]()
    for number, step in enumerate(steps):
        if number in again:
            tokens.clear()  # a request of the same name begins anew
        for request, more in step:
            tokens[request] = tokens.get(request, 0) + more
        pieces = [piece(request, tokens[request]) for request, _ in step]
        assert last.complete(sent(leader.shorten(pieces))) == pieces


def test_a_step_of_many_long_answers_fits_a_message() -> None:
    leader = PastWindow()
    for request in range(150):
        leader.shorten([piece(request, 4_000, 1_000)])
    pieces = [piece(request, 4_001, 1_000) for request in range(150)]
    assert len(msgspec.msgpack.encode(pieces)) > 2 * MAX_PAYLOAD_BYTES
    assert len(msgspec.msgpack.encode(leader.shorten(pieces))) < 60_000


def test_pieces_without_a_past_stay_as_they_are() -> None:
    window = PastWindow()
    plain = msgspec.structs.replace(piece(1, 5), sampling=None)
    assert window.shorten([plain]) == window.complete([plain]) == [plain]


def test_a_past_that_was_never_told_is_an_error() -> None:
    leader = PastWindow()
    leader.shorten([piece(1, 5)])
    with pytest.raises(ValueError, match="5 generated tokens of r1 are not known here"):
        PastWindow().complete(leader.shorten([piece(1, 6)]))
