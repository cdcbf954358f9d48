"""The last stage knows all tokens so far, though each is told it once."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.worker.pipeline.pasts import PastWindow
from livescale.shared.bus.codec import MAX_PAYLOAD_BYTES
from livescale.shared.messages.pipelines import StagePiece
from livescale.shared.messages.requests import Sampling

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
