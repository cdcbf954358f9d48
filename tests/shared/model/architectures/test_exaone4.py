import pytest

from livescale.shared.model.declaration.config_file import CheckpointError
from tests.shared.model.architectures.published import described


def test_where_some_layers_have_a_window_the_others_do_not_rotate() -> None:
    large, small = described("EXAONE-4.0-32B"), described("EXAONE-4.0-1.2B")
    assert [large.kind(layer).window for layer in range(4)] == [4_096, 4_096, 4_096, 0]
    assert large.kind(3).frequencies == (0.0,) * 64
    assert small.kind(3).frequencies is None or any(small.kind(3).frequencies or ())


@pytest.mark.parametrize("pattern", ["LLX", ""])
def test_a_pattern_of_other_letters_is_refused(pattern: str) -> None:
    with pytest.raises(CheckpointError, match="must be a number of layers, or consist of L and G"):
        described("EXAONE-4.0-32B", sliding_window_pattern=pattern)
