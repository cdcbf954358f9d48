"""KV that leaves while a step computes it, and KV that comes: the same bytes as in the cache, layer by layer."""

import pytest

from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.scheduling.batch import (
    SPARE_BYTES,
    Batch,
    KvCopy,
    KvExport,
    KvPiece,
    KvSlice,
    ScheduledChunk,
)
from tests.worker.engine.models import KERNELS, checkpointed
from tests.worker.requests import random_prompt

BLOCKS = range(2, 6)


def computed(exports: tuple[KvExport, ...] = ()) -> tuple[TorchEngine, list[KvPiece]]:
    """An engine that has computed a prompt, and what left meanwhile."""
    engine, left = checkpointed("llama2-untied").engine(kernels=KERNELS), list[KvPiece]()
    engine.on_kv = lambda export, layers, data: left.append((export.slice(layers), data))
    chunk = ScheduledChunk("r", tuple(random_prompt(1, 60)), 0, BLOCKS, decode=False)
    engine.step(Batch(1, (chunk,), exports=exports))
    return engine, left


def test_each_piece_leaves_once_with_the_bytes_that_lie_in_the_cache() -> None:
    layers = computed()[0].store.layers
    pieces = tuple(range(layer, layer + 1) for layer in range(layers))
    engine, left = computed((KvExport(7, BLOCKS, 10, 60, pieces), KvExport(8, BLOCKS, 0, 10, (range(layers),))))
    assert sorted((one.start, one.stop, *one.layers) for one, _ in left) == sorted(
        [*((10, 60, layer) for layer in range(layers)), (0, 10, *range(layers))]
    )
    for one, data in left:
        assert data[:-SPARE_BYTES] == engine.store.export_slices([one])
    engine.step(Batch(2, (ScheduledChunk("r", (3,), 60, BLOCKS, decode=True),)))
    assert len(left) == layers + 1


def test_what_comes_is_laid_down_after_the_copies_that_are_due() -> None:
    engine, _ = computed()
    layers = range(engine.store.layers)
    kept = engine.store.export_slices([KvSlice(BLOCKS, 0, 16, layers)])
    came = engine.store.export_slices([KvSlice(BLOCKS, 16, 32, layers)])
    writable = memoryview(bytearray(came))
    engine.store.lay_down([KvCopy(range(2, 3), range(8, 9))], [(KvSlice(range(2, 3), 0, 16, layers), writable)])
    assert engine.store.export_slices([KvSlice(range(8, 9), 0, 16, layers)]) == kept
    assert engine.store.export_slices([KvSlice(range(2, 3), 0, 16, layers)]) == came
    with pytest.raises(ValueError, match="bytes of KV"):
        engine.store.lay_down([], [(KvSlice(range(2, 3), 0, 16, layers), writable[:8])])
