"""What a batch refuses, and the names that its fields have between ranks."""

import msgspec
import pytest

from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.scheduling.batch import (
    Batch,
    KvSlice,
    LayerEntry,
    ScheduledChunk,
    TokenSampling,
    activation_bytes,
    block_bytes,
    kv_bytes,
    share_left,
    slice_bytes,
)
from livescale.services.worker.tensor_parallel.wire import encode_batch
from livescale.shared.messages.requests import Sampling
from livescale.shared.simulation.virtual_time import run
from tests.clocks import LoopClock
from tests.worker.engine.made_up import BLOCK_BYTES, BLOCK_TOKENS, LATENCY, LAYERS, loaded, manifest


def test_a_chunk_of_a_prompt_begins_at_a_cut_and_has_no_more_rows_than_one_may_have() -> None:
    for tokens, start in (((), 0), ((1, 2), 3), (tuple(range(129)), 0)):
        with pytest.raises(ValueError, match="are no chunk of a prompt"):
            ScheduledChunk("a", tokens, start, range(16), decode=False)
    ScheduledChunk("a", tuple(range(129)), 3, range(16), decode=True)


def test_rows_and_samplings_are_those_of_the_chunks() -> None:
    sampling = TokenSampling(Sampling(temperature=0.0), 0)
    entry = LayerEntry(3, 8, memoryview(b""), left=0.25)
    chunks = (
        ScheduledChunk("a", (1, 2, 3), 8, range(2), decode=False, sampling=sampling),
        ScheduledChunk("b", (4,), 5, range(2, 4), decode=True, entry=entry),
    )
    batch = Batch(1, chunks)
    assert (batch.prefill_rows, batch.decode_rows, batch.layers_before) == (3, 1, 3)
    assert [chunk.work for chunk in chunks] == [3, 0.25]
    assert batch.samplings == (sampling,)
    assert sampling.is_greedy


def test_ranks_of_earlier_releases_read_the_fields_by_their_names() -> None:
    chunk = ScheduledChunk("a", (1,), 5, range(1), decode=True, sampling=TokenSampling(Sampling(), 0))
    told = msgspec.msgpack.decode(encode_batch(Batch(1, (chunk,))))
    assert list(told) == ["step", "pieces", "preempted", "imports", "prefixes", "exports"]
    names = ["request_id", "tokens", "start", "blocks", "decode", "draw", "entry", "scoring"]
    # What came later is passed over by those who do not know it.
    assert list(told["pieces"][0]) == [*names, "whole", "adapter", "pixels"]
    assert list(told["pieces"][0]["draw"]) == ["sampling", "index", "forbidden", "stops", "past"]


def test_some_of_the_model_is_left_even_where_all_layers_were_run() -> None:
    assert [share_left(layer, 3) for layer in range(4)] == [1.0, 0.75, 0.5, 0.25]


def test_kv_takes_whole_blocks_and_a_slice_only_its_positions() -> None:
    one = kv_bytes(manifest(), 1, 1, block_tokens=1)
    assert block_bytes(manifest(), BLOCK_TOKENS) == BLOCK_BYTES == one * BLOCK_TOKENS * LAYERS
    assert kv_bytes(manifest(), BLOCK_TOKENS + 1, LAYERS, BLOCK_TOKENS) == 2 * BLOCK_BYTES
    assert slice_bytes(manifest(), KvSlice(range(9), 3, 8, range(2))) == 5 * 2 * one


def test_an_activation_has_a_row_for_each_position() -> None:
    assert activation_bytes(manifest(), 7) == 7 * activation_bytes(manifest(), 1)


def test_a_model_whose_kv_does_not_fit_is_refused() -> None:
    async def main() -> None:
        runner = ModelledRunner(BLOCK_BYTES - 1, BLOCK_TOKENS, LATENCY, 1.0, LoopClock(0.0))
        with pytest.raises(ValueError, match=f"--kv-bytes is {BLOCK_BYTES - 1}, and .* takes {BLOCK_BYTES}; raise it"):
            await runner.load(manifest(), 4_096)

    run(main())


def test_slices_have_the_size_of_keys_and_values() -> None:
    async def main() -> None:
        runner = await loaded()
        slices = [KvSlice(range(2, 9), 3, 100, range(1, LAYERS)), KvSlice(range(9, 10), 0, 1, range(1))]
        data = await runner.export_slices(slices)
        assert data.nbytes == BLOCK_BYTES // LAYERS // BLOCK_TOKENS * (97 * (LAYERS - 1) + 1)
        await runner.import_slices(slices, data)
        with pytest.raises(ValueError, match=r"2 slices are .* bytes of KV, not 8"):
            await runner.import_slices(slices, data[:8])

    run(main())
