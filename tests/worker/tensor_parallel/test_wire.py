"""What the rank that leads tells the others is the batch that it runs."""

import pytest

from livescale.services.worker.scheduling.batch import (
    Batch,
    KvCopy,
    KvImport,
    LayerEntry,
    Past,
    PrefixUse,
    ScheduledChunk,
    TokenSampling,
)
from livescale.services.worker.tensor_parallel.wire import decode_batch, encode_batch
from livescale.shared.messages.requests import Sampling


def test_a_batch_comes_as_it_was_told() -> None:
    sampling = TokenSampling(Sampling(temperature=0.7, seed=2**62), 3, (1, 2), (4,))
    pieces = (
        ScheduledChunk("a", (5,), 200, range(0, 16), True, sampling),
        ScheduledChunk("b", (6, 7), 0, range(16, 17), False),
    )
    batch = Batch(9, pieces, ("c",), prefixes=PrefixUse((KvCopy(range(1, 2), range(3, 4)),), 128, 64))
    assert decode_batch(encode_batch(batch)) == batch


def test_activations_and_kv_are_not_told() -> None:
    piece = ScheduledChunk("a", (5,), 200, range(0, 16), True, entry=LayerEntry(2, 201, memoryview(b"activation")))
    batch = Batch(9, (piece,), imports=(KvImport("a", range(0, 16), 2, memoryview(b"keys and values")),))
    told = decode_batch(encode_batch(batch))
    assert told.chunks[0].entry is not None
    assert (told.chunks[0].layer, told.chunks[0].entry.stop, told.chunks[0].entry.activation) == (2, 201, b"")
    assert [(one.request_id, one.layers, one.data) for one in told.imports] == [("a", 2, b"")]


def test_the_tokens_so_far_are_not_told_as_only_the_first_rank_chooses() -> None:
    sampling = TokenSampling(Sampling(repetition_penalty=1.2, grammar="start: /a+/"), 3, past=Past((1, 2), (3,)))
    told = decode_batch(encode_batch(Batch(9, (ScheduledChunk("a", (5,), 200, range(0, 16), True, sampling),))))
    assert told.samplings == (TokenSampling(Sampling(repetition_penalty=1.2), 3),)


@pytest.mark.parametrize("data", [b"", b"\xc1", encode_batch(Batch(1, ()))[:-1], b"\x81\xa4step\xa1x"])
def test_what_is_no_batch_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_batch(data)
