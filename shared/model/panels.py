"""Matrices of bfloat16 in panels, as kernels for CPUs read them.

A panel is 64 rows; of these each pair of columns lies together, row after row. Numbers are given as their bits.
"""

import numpy as np
from numpy.typing import NDArray

from livescale.shared.model.block_layout import PANEL_ROWS

Matrix = NDArray[np.uint16]


def to_panels(matrix: Matrix) -> Matrix:
    """A matrix `[out, in]` as panels `[out / 64, in / 2, 64, 2]`."""
    rows, columns = matrix.shape
    pairs = matrix.view(np.uint32).reshape(rows // PANEL_ROWS, PANEL_ROWS, columns // 2)
    panels = np.ascontiguousarray(pairs.swapaxes(1, 2))
    return panels.view(np.uint16).reshape(-1, columns // 2, PANEL_ROWS, 2)


def lay_in_panels(matrix: Matrix) -> None:
    """Rearrange a matrix in its own memory, panel by panel, so that each stays in the processor's cache meanwhile."""
    for first in range(0, len(matrix), PANEL_ROWS):
        panel = matrix[first : first + PANEL_ROWS]
        panel[:] = to_panels(panel).reshape(panel.shape)
