import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livescale.services.worker.disaggregation.pieces import (
    LEAST_PIECE_BYTES,
    MOST_PIECE_BYTES,
    SLOW_LINK,
    KvCoverage,
    KvRegion,
    cut,
    layer_pieces,
)


@settings(max_examples=120)
@given(
    layers=st.integers(1, 80),
    layer_bytes=st.sampled_from((1, LEAST_PIECE_BYTES)) | st.integers(1, 3 * LEAST_PIECE_BYTES),
    link_pace=st.just(SLOW_LINK) | st.floats(0.1, 1e6),
)
def test_pieces_of_a_step_are_all_layers_in_order_and_worth_a_message(
    layers: int, layer_bytes: int, link_pace: float
) -> None:
    pieces = layer_pieces(layers, layer_bytes, link_pace)
    assert [layer for piece in pieces for layer in piece] == list(range(layers))
    if len(pieces) > 1:
        assert len(pieces[-1]) == 1
        assert all(len(piece) * layer_bytes >= LEAST_PIECE_BYTES or piece == range(layers - 1) for piece in pieces[:-1])


@pytest.mark.parametrize("layers", [3, 14, 80])
@pytest.mark.parametrize("link_pace", [SLOW_LINK, 5.5, 40.0])
def test_only_the_last_piece_is_left_at_the_end_of_a_step(layers: int, link_pace: float) -> None:
    sent = 0.0  # when the link has carried all pieces so far; a layer is computed in 1
    *others, last = layer_pieces(layers, LEAST_PIECE_BYTES, link_pace)
    for piece in others:
        sent = max(sent, piece.stop) + len(piece) / link_pace
    assert sent <= last.stop


def test_a_fast_link_has_fewer_pieces_of_bounded_size() -> None:
    of_paces = [layer_pieces(14, 2 * LEAST_PIECE_BYTES, pace) for pace in (0.5, SLOW_LINK, 5.0, 100.0)]
    assert [[len(piece) for piece in pieces] for pieces in of_paces] == [
        [2, 4, 4, 2, 1, 1],
        [2, 4, 4, 2, 1, 1],
        [4, 7, 2, 1],
        [5, 8, 1],
    ]


def test_sending_begins_early_in_few_pieces_of_bounded_size() -> None:
    assert [len(piece) for piece in layer_pieces(14, 2 * LEAST_PIECE_BYTES)] == [2, 4, 4, 2, 1, 1]
    pieces = layer_pieces(80, MOST_PIECE_BYTES // 8)
    assert max(map(len, pieces)) == 8
    assert len(layer_pieces(80, MOST_PIECE_BYTES)) == 80


def test_what_is_less_than_a_piece_is_not_cut() -> None:
    assert layer_pieces(24, LEAST_PIECE_BYTES // 24) == (range(24),)
    assert layer_pieces(4, LEAST_PIECE_BYTES // 2) == (range(3), range(3, 4))


def test_what_lies_in_the_cache_is_cut_into_pieces_of_bounded_size() -> None:
    groups = list(cut(100, 1500, layers=8, layer_bytes=4096))
    pieces = [group.next(computed=group.stop, cached=0) for group in groups for _ in group.left]
    regions = [piece.region for piece in pieces if piece is not None]
    covered = {(position, layer) for one in regions for position in range(one.start, one.stop) for layer in one.layers}
    assert covered == {(position, layer) for position in range(100, 1500) for layer in range(8)}
    assert sum((one.stop - one.start) * len(one.layers) for one in regions) == len(covered)
    assert all((one.stop - one.start) * len(one.layers) * 4096 <= MOST_PIECE_BYTES for one in regions)


def test_kv_is_here_once_every_position_has_come_in_every_layer() -> None:
    coverage = KvCoverage(10, cached=4, layers=2)
    for region in (KvRegion(4, 8, range(2)), KvRegion(8, 10, range(1)), KvRegion(6, 9, range(1, 2))):
        coverage.add(region)
        assert not coverage.is_full
    coverage.add(KvRegion(9, 10, range(1, 2)))
    assert coverage.is_full
