import numpy as np
import pytest

from livescale.shared.model.panels import Matrix, lay_in_panels, to_panels


def numbered(rows: int, columns: int) -> Matrix:
    return np.arange(rows * columns, dtype=np.uint16).reshape(rows, columns)


@pytest.mark.parametrize("shape", [(64, 32), (128, 64), (320, 96)])
def test_a_matrix_comes_back_from_panels_as_it_was(shape: tuple[int, int]) -> None:
    matrix = numbered(*shape)
    panels = to_panels(matrix)
    assert panels.shape == (shape[0] // 64, shape[1] // 2, 64, 2)
    assert np.array_equal(panels.swapaxes(1, 2).reshape(shape), matrix)
    lay_in_panels(matrix)
    assert np.array_equal(matrix.ravel(), panels.ravel())


def test_a_pair_of_columns_lies_together_row_after_row() -> None:
    panels = to_panels(numbered(128, 32))
    assert panels[1, 3, 5].tolist() == [(64 + 5) * 32 + 6, (64 + 5) * 32 + 7]
