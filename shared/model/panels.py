"""Matrices of bfloat16 in panels, as kernels for CPUs read them.

A panel is 64 rows; of these each pair of columns lies together, row after row.
"""

import torch

from livescale.shared.model.block_layout import PANEL_ROWS


def to_panels(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix of bfloat16 `[out, in]` as panels `[out / 64, in / 2, 64, 2]`."""
    rows, columns = matrix.shape
    pairs = matrix.view(torch.int32).view(rows // PANEL_ROWS, PANEL_ROWS, columns // 2)
    return pairs.transpose(1, 2).contiguous().view(matrix.dtype).view(-1, columns // 2, PANEL_ROWS, 2)


def lay_in_panels(matrix: torch.Tensor) -> None:
    """Rearrange a matrix in its own memory, panel by panel, so that each stays in the processor's cache meanwhile."""
    for first in range(0, len(matrix), PANEL_ROWS):
        panel = matrix[first : first + PANEL_ROWS]
        panel.view(-1).copy_(to_panels(panel).view(-1))
