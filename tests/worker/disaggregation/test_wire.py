from collections.abc import Iterator

import pytest

from livescale.services.worker.disaggregation.pieces import MOST_TOLD, KvRegion, PieceGroup, StagedPiece, grouped
from livescale.services.worker.disaggregation.wire import pack_header, unpack_header


def sent(group: PieceGroup) -> Iterator[StagedPiece]:
    while group.left and (piece := group.next(computed=group.stop, cached=0)):
        yield piece


@pytest.mark.parametrize(("count", "told"), [(1, [1]), (MOST_TOLD, [MOST_TOLD]), (MOST_TOLD + 1, [MOST_TOLD, 1])])
def test_one_header_tells_of_all_pieces_of_a_group(count: int, told: list[int]) -> None:
    layers = [range(layer, layer + 1) for layer in range(count)]
    pieces = [piece for group in grouped(5, 20, layers, leaves=False) for piece in sent(group)]
    assert [len(piece.told) for piece in pieces if piece.told] == told
    headers = [pack_header(5, 20, piece.told) for piece in pieces if piece.told]
    regions = [region for header in headers for region in unpack_header(memoryview(header), 20, count)]
    assert regions == [piece.region for piece in pieces] == [KvRegion(5, 20, one) for one in layers]


def test_pieces_that_are_not_of_the_request_are_refused() -> None:
    header = memoryview(pack_header(5, 20, [range(2, 3), range(3, 4)]))
    for positions, layers in ((19, 4), (20, 3)):
        with pytest.raises(ValueError, match=r"of 19|of 3"):
            unpack_header(header, positions, layers)
    with pytest.raises(ValueError, match="positions 7 to 7"):
        unpack_header(memoryview(pack_header(7, 7, [range(1)])), 20, 4)
    with pytest.raises(ValueError, match="layers cut at"):
        unpack_header(memoryview(pack_header(5, 20, [range(3), range(1)])), 20, 4)


@pytest.mark.parametrize("place", [0, 40, -1])
def test_a_header_that_is_damaged_is_refused(place: int) -> None:
    header = pack_header(5, 20, [range(2, 4)])
    header[place] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        unpack_header(memoryview(header), 20, 4)
