from array import array

import pytest

from livescale.services.worker.engine.modelled_states import read_states, write_states
from livescale.services.worker.engine.modelled_steps import STATE_BYTES
from livescale.shared.simulation.sparse_memory import SparseKv


@pytest.mark.parametrize("row_bytes", [STATE_BYTES, 24, 20])
def test_sparse_activations_have_the_states_that_real_ones_have(row_bytes: int) -> None:
    real, sent, came = memoryview(bytearray(9 * row_bytes)), SparseKv.of(9 * row_bytes), SparseKv.of(9 * row_bytes)
    for memory in (real, sent):
        for rows, states in ((range(5), [1, 2, 3, 4, 5]), (range(5, 8), [6, 7, 8]), (range(2), [11, 12])):
            write_states(memory[rows.start * row_bytes : rows.stop * row_bytes], array("Q", states))
    for start in range(0, came.nbytes, 11):  # as pieces of messages do, which begin and end anywhere
        came[start : start + 11].put(sent[start : start + 11].copy())
    for rows in (range(9), range(1, 6), range(4, 9), range(3, 4)):
        part = slice(rows.start * row_bytes, rows.stop * row_bytes)
        assert read_states(came[part], len(rows)) == read_states(real[part], len(rows))
