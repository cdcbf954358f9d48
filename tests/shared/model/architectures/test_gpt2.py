import pytest

from livescale.shared.model.declaration.config_file import CheckpointError
from tests.shared.model.architectures.published import described


def test_scores_are_divided_by_the_number_of_their_layer_where_the_file_says_so() -> None:
    plain = described("gpt2")
    assert plain.kind(0).attention_scale == plain.kind(11).attention_scale == 64**-0.5
    divided = described("gpt2", scale_attn_by_inverse_layer_idx=True)
    assert [divided.kind(layer).attention_scale for layer in (0, 1, 11)] == [64**-0.5, 64**-0.5 / 2, 64**-0.5 / 12]


def test_one_that_attends_to_an_encoder_is_refused() -> None:
    with pytest.raises(CheckpointError, match="add_cross_attention is true, which is not served"):
        described("gpt2", add_cross_attention=True)
