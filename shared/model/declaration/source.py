"""Where a parameter lies in a checkpoint. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from livescale.shared.model.declaration.experts import Fused


@dataclass(frozen=True)
class Source:
    """Where a parameter lies in a checkpoint: `rows` rows, from row `start` on, of the tensor `name`.

    `order` says which number of a checkpoint's head is at each place of ours; it is empty where it is the same one.
    An expert's may be `fused` with those of others. A `transposed` matrix `[out, in]` is stored as `[in, out]`: what is
    said of rows is about columns there. It may have another `shape` there, of as many numbers in the same order.
    """

    name: str
    start: int
    rows: int
    order: tuple[int, ...] = ()
    fused: Fused | None = None
    transposed: bool = False
    shape: tuple[int, ...] = ()

    def stored_shape(self, shape: Sequence[int], known: Sequence[int] | None) -> list[int]:
        """The shape of the tensor that holds this parameter of `shape`; those that are `known` so far make it
        `known`."""
        if self.shape:
            return list(self.shape)
        axis = int(self.transposed)
        rows = max(0 if known is None else known[axis], self.start + self.rows)
        return [shape[1], rows] if self.transposed else [rows, *shape[1:]]
