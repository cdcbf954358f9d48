"""KV of a modelled engine outside of its cache: in the host's memory, or in that of a simulation, which takes no
room."""

from collections.abc import Iterator

from livescale.services.worker.engine.modelled_kv import ModelledKv
from livescale.services.worker.engine.modelled_steps import STATE_BYTES
from livescale.shared.links.contract import View
from livescale.shared.simulation.sparse_memory import SparseBytes


def zeros(size_bytes: int) -> View:
    """Memory of the host that is all 0."""
    return memoryview(bytearray(size_bytes))


def export(kv: ModelledKv, slots: range, layers: range, data: View) -> None:
    """Write what `layers` have in `slots` into `data`, which is all 0, each layer's part as long as the others'."""
    for place, states in kv.export(slots, layers, data.nbytes // len(layers)):
        part = data[place : place + len(states)]
        if isinstance(part, memoryview):
            part[:] = states
        else:
            assert isinstance(part, SparseBytes)
            part.fill(states)


def take(kv: ModelledKv, slots: range, layers: range, data: View) -> None:
    """Store what `export` wrote for as many slots of these layers."""
    kv.take(slots, layers, _parts(len(layers), len(slots) * STATE_BYTES, data))


def _parts(count: int, size_bytes: int, data: View) -> Iterator[bytes]:
    """The first bytes of each of `count` parts."""
    for number in range(count):
        start = number * (data.nbytes // count)
        part = data[start : start + size_bytes]
        if isinstance(part, memoryview):
            yield part.tobytes()
        else:
            assert isinstance(part, SparseBytes)
            yield part.written()
