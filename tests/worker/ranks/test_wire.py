"""What the rank that leads tells the others is the batch that it runs."""

import pytest

from services.worker.batch import Batch, Draw, KvCopy, Piece, PrefixUse
from services.worker.ranks.wire import decode_batch, encode_batch
from shared.messages.requests import Sampling


def test_a_batch_comes_as_it_was_told() -> None:
    draw = Draw(Sampling(temperature=0.7, seed=2**62), 3, (1, 2), (4,))
    pieces = (Piece("a", (5,), 200, range(0, 16), True, draw), Piece("b", (6, 7), 0, range(16, 17), False))
    batch = Batch(9, pieces, ("c",), prefixes=PrefixUse((KvCopy(range(1, 2), range(3, 4)),), 128, 64))
    assert decode_batch(encode_batch(batch)) == batch


@pytest.mark.parametrize("data", [b"", b"\xc1", encode_batch(Batch(1, ()))[:-1], b"\x81\xa4step\xa1x"])
def test_what_is_no_batch_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_batch(data)
