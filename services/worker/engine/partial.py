"""A request part of the way through the layers: what a worker that still loads runs one layer at a time."""

from collections.abc import Iterable, Sequence

import torch

from services.worker.engine.rows import Rows


class Partial:
    """All rows of a request, as slabs of no more than a batch may have; `done` layers were run.

    `activation` is what the next layer takes, `[position, hidden]` as bytes. It changes with every layer.
    """

    def __init__(self, slabs: Sequence[Rows], hidden_size: int, dtype: torch.dtype) -> None:
        self.done = 0
        self.slabs = slabs
        count = sum(slab.count for slab in slabs)
        data = bytearray(count * hidden_size * dtype.itemsize)
        self.activation = memoryview(data)
        hidden = torch.frombuffer(data, dtype=dtype).view(count, hidden_size)
        self._hidden = torch.split_with_sizes(hidden, [slab.count for slab in slabs])

    @property
    def parts(self) -> Iterable[tuple[torch.Tensor, Rows]]:
        """Activations `[row, hidden]`, and what the layers must know of these rows, slab by slab."""
        return zip(self._hidden, self.slabs, strict=True)

    def put(self, index: int, hidden: torch.Tensor) -> None:
        """What came out of the embedding or a layer for slab `index`."""
        self._hidden[index].copy_(hidden)
