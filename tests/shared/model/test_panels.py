import pytest
import torch

from livescale.shared.model.panels import lay_in_panels, to_panels


@pytest.mark.parametrize("shape", [(64, 32), (128, 64), (320, 96)])
def test_a_matrix_comes_back_from_panels_as_it_was(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape).bfloat16()
    panels = to_panels(matrix)
    assert panels.shape == (shape[0] // 64, shape[1] // 2, 64, 2)
    assert torch.equal(panels.transpose(1, 2).reshape(shape), matrix)
    lay_in_panels(matrix)
    assert torch.equal(matrix.view(-1), panels.view(-1))


def test_a_pair_of_columns_lies_together_row_after_row() -> None:
    matrix = torch.arange(128 * 32).view(128, 32).short().view(torch.bfloat16)
    panels = to_panels(matrix).view(torch.int16)
    assert panels[1, 3, 5].tolist() == [(64 + 5) * 32 + 6, (64 + 5) * 32 + 7]
