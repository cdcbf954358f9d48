import pytest

from livescale.shared.model.declaration.config_file import CheckpointError
from tests.shared.model.architectures.published import described


def test_every_fourth_layer_does_not_rotate() -> None:
    model = described("SmolLM3-3B")
    still = (0.0,) * 64
    assert [layer for layer in range(12) if model.kind(layer).frequencies == still] == [3, 7, 11]


def test_a_list_for_another_number_of_layers_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no_rope_layers has 2 for 36 layers"):
        described("SmolLM3-3B", no_rope_layers=[1, 0])
