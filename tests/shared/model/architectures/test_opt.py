import pytest

from livescale.shared.model.declaration.config_file import CheckpointError
from tests.shared.model.architectures.published import described


def test_positions_are_counted_from_the_third_row_of_their_table_on() -> None:
    assert described("opt-125m").position_offset == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [("word_embed_proj_dim", 512), ("do_layer_norm_before", False), ("layer_norm_elementwise_affine", False)],
)
def test_what_opt_350m_does_is_refused_with_the_name_of_others(key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=f"{key} is .* use another size, such as OPT-125M"):
        described("opt-125m", **{key: value})
