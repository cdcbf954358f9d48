"""Rows part of the way through the layers: a request that is run one layer at a time, or a batch at some stage."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


@dataclass(frozen=True, eq=False)
class Passed:
    """A batch after some of the model's blocks: its activation `[row, hidden]` as bytes, or after the last the tokens
    of its draws."""

    activation: memoryview
    tokens: list[int]


class Slab(Protocol):
    """No more rows than a batch may have, and what the layers must know of them."""

    @property
    def count(self) -> int: ...


S = TypeVar("S", bound=Slab)


class Partial(Generic[S]):
    """All rows of a request, as slabs; `done` layers were run.

    `activation` is what the next layer takes, `[position, hidden]` as bytes. It changes with every layer.
    """

    def __init__(self, slabs: Sequence[S], row_bytes: int) -> None:
        self.done = 0
        self.slabs = slabs
        self.activation = memoryview(bytearray(sum(slab.count for slab in slabs) * row_bytes))
        self._row_bytes = row_bytes

    @property
    def parts(self) -> Iterable[tuple[memoryview, S]]:
        """Slab by slab: its activations `[row, hidden]` as bytes, to be read and written, and the slab."""
        start = 0
        for slab in self.slabs:
            stop = start + slab.count * self._row_bytes
            yield self.activation[start:stop], slab
            start = stop
