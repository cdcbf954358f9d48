"""The states of rows in memory outside of a modelled engine: of activations on their way, real or of a simulation."""

import struct
from array import array

from livescale.services.worker.engine.modelled_steps import STATE_BYTES
from livescale.shared.simulation.sparse_memory import SparseBytes

StateMemory = memoryview | SparseBytes  # for activations and KV; sparse in a simulation


def write_states(data: StateMemory, states: "array[int]") -> None:
    """Write states into activations `[row, hidden]`, one at the beginning of each row. In sparse memory they name what
    is in all of these rows."""
    if isinstance(data, SparseBytes):
        data.fill(states.tobytes())
        return
    words, odd = divmod(len(data) // len(states), STATE_BYTES)
    if odd:
        for row, state in enumerate(states):
            struct.pack_into("=Q", data, row * (words * STATE_BYTES + odd), state)
    else:
        data.cast("B").cast("Q")[::words] = memoryview(states)


def read_states(data: StateMemory, rows: int) -> "array[int]":
    """Read the states of activations of so many rows."""
    if isinstance(data, SparseBytes):
        return _named_states(data, rows)
    words, odd = divmod(len(data) // rows, STATE_BYTES)
    if odd:
        return array("Q", (struct.unpack_from("=Q", data, row * (words * STATE_BYTES + odd))[0] for row in range(rows)))
    return array("Q", data.cast("B").cast("Q")[::words].tobytes())


def _named_states(data: SparseBytes, rows: int) -> "array[int]":
    """The states that are written in sparse memory; 0 in rows where nothing is."""
    states, row_bytes = array("Q", bytes(rows * STATE_BYTES)), data.nbytes // rows
    for one in data.copy().extents:
        first, last = -(-one.start // row_bytes), -(-one.stop // row_bytes)  # the rows that begin in it
        place = (one.origin - one.start) // row_bytes + first
        states[first:last] = array("Q", one.content[place * STATE_BYTES : (place + last - first) * STATE_BYTES])
    return states
