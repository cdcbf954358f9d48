"""Matrices by a compiled kernel, which reads what oneDNN laid out and gives oneDNN's bits."""

import sys
from functools import cache

import torch

from services.worker.engine.kernels.contract import Kernels
from services.worker.engine.parameters import OneDnnLinear, Tensors
from shared.block_layout import PANEL_ROWS, PANEL_STEP

# Beyond so many rows oneDNN is faster: on CPUs with AMX, of which the kernel knows nothing. The bits are the same.
MOST_ROWS = 64 if torch.cpu._is_amx_tile_supported() else sys.maxsize
# Of how many inputs oneDNN takes a sum before it adds it to the others.
SPANS = (1_024, 512)


class CompiledLinear(OneDnnLinear):
    """As OneDnnLinear, in bfloat16, and faster; the kernel is for one thread, and used where there are no others."""

    def __init__(self, kernels: Kernels, tensors: Tensors, *names: str, out_step: int = 1) -> None:
        super().__init__(tensors, *names, out_step=out_step)
        self._kernels = kernels
        outputs, inputs = self.packed.shape
        span = matching_span(kernels, outputs, inputs) if torch.get_num_threads() == 1 else None
        self._most_rows = 0 if span is None else MOST_ROWS
        bias = 0 if self._bias is None else self._bias.data_ptr()
        matrix = torch.ops.mkldnn.data_ptr(self.packed)
        self.numbers = None if span is None else (matrix, bias, inputs, outputs, span)

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        """One row takes the kernel as long as it takes to read the matrix."""
        return super().padded(rows) if self.numbers is None else rows

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._multiply(rows, 0) if rows.shape[0] <= self._most_rows else super().__call__(rows)

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        if rows.shape[0] > self._most_rows:
            return super().plus(rows, residual)
        residual = residual.contiguous()
        return self._multiply(rows, residual.data_ptr())

    def _multiply(self, rows: torch.Tensor, residual: int) -> torch.Tensor:
        rows = rows.contiguous()
        count = rows.shape[0]  # len() takes as long as the rest
        assert self.numbers is not None
        result = rows.new_empty(count, self.numbers[3])
        self._kernels.multiply(*self.numbers, rows.data_ptr(), residual, result.data_ptr(), count)
        return result


@cache
def matching_span(kernels: Kernels, outputs: int, inputs: int) -> int | None:
    """With which the kernel gives oneDNN's bits for matrices of this shape; None where it never does.

    Neither oneDNN's layout nor its order of sums is promised: so they are looked at, once a shape.
    """
    noise = torch.randn(outputs + 5 * inputs, generator=torch.Generator().manual_seed(1)).bfloat16()
    weight, rows = noise[: outputs + inputs].unfold(0, inputs, 1)[:outputs], noise[-4 * inputs :].view(4, inputs)
    fills = outputs % PANEL_ROWS == 0 and inputs % PANEL_STEP == 0
    panels = (outputs // PANEL_ROWS, inputs // 2, PANEL_ROWS, 2)
    # In panels it is noise as well, and need not be laid out.
    known = OneDnnLinear({"m.weight": weight.contiguous().view(panels if fills else weight.shape)}, "m")
    # Less what they are rounded to, even the last bit of the sums can be seen.
    rest = -known(rows)
    right, packed = known.plus(rows, rest), torch.ops.mkldnn.data_ptr(known.packed)
    for span in sorted({min(span, inputs) for span in (*SPANS, inputs)}):
        result = torch.empty_like(right)
        kernels.multiply(
            packed, 0, inputs, outputs, span, rows.data_ptr(), rest.data_ptr(), result.data_ptr(), len(rows)
        )
        if torch.equal(result, right):
            return span
    return None
