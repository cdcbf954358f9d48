import pytest

from livescale.shared.model.declaration.config_file import CheckpointError
from tests.shared.model.architectures.published import described


def test_layers_have_a_window_in_turn_and_all_of_them_sinks() -> None:
    model = described("gpt-oss-20b")
    assert [model.kind(layer).window for layer in range(4)] == [128, 0, 128, 0]
    assert all(model.kind(layer).sinks for layer in range(24))


def test_a_limit_that_clamps_everything_to_zero_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"swiglu_limit are 1\.702 and 0.*, must be above zero"):
        described("gpt-oss-20b", swiglu_limit=0.0)
