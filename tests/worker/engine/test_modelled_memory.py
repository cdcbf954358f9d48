"""KV of a modelled engine is the same in memory of the host and in that of a simulation."""

from array import array

from livescale.services.worker.engine.modelled_kv import ModelledKv
from livescale.services.worker.engine.modelled_memory import export, take, zeros
from livescale.services.worker.engine.modelled_steps import STATE_BYTES, first_state, follow
from livescale.shared.simulation.sparse_memory import SparseKv

LAYERS, BLOCKS, BLOCK_TOKENS = 3, 5, 4
ORIGIN = first_state("v1")
STATES = list(follow(ORIGIN, range(1, 9)))


def test_sparse_memory_has_what_real_memory_would_have() -> None:
    kv, each = ModelledKv(LAYERS, BLOCKS, BLOCK_TOKENS), 8 * STATE_BYTES + 5
    kv.write(0, array("Q", STATES[:6]), kv.mask(range(LAYERS)))
    kv.write(6, array("Q", STATES[6:8]), kv.mask(range(1, 3)))
    real, sparse, came = zeros(LAYERS * each), SparseKv.of(LAYERS * each), SparseKv.of(LAYERS * each)
    export(kv, range(8), range(LAYERS), real)
    export(kv, range(8), range(LAYERS), sparse)
    assert sparse.written() == real
    for start in range(0, came.nbytes, 11):  # as pieces do, which begin and end anywhere
        came[start : start + 11].put(sparse[start : start + 11].copy())
    there = ModelledKv(LAYERS, BLOCKS, BLOCK_TOKENS)
    take(there, range(12, 20), range(LAYERS), came)
    assert there.last(range(12, 18), there.mask(range(LAYERS)), ORIGIN) == STATES[5]
    assert there.last(range(12, 20), there.mask(range(1, 3)), ORIGIN) == STATES[7]
    assert there.last(range(12, 20), there.mask(range(1)), ORIGIN) is None
