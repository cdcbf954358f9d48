import pytest

from livescale.shared.model.declaration.config_file import CheckpointError
from tests.shared.model.architectures.published import described


def test_attention_and_mlp_have_one_norm_whose_weights_have_no_biases() -> None:
    model = described("c4ai-command-r-v01")
    assert model.kind(0).parallel
    assert (model.layer_norms, model.norm_biases, model.interleaved) == (True, False, True)


def test_heads_with_norms_of_their_own_are_refused() -> None:
    with pytest.raises(CheckpointError, match="use_qk_norm"):
        described("c4ai-command-r-v01", use_qk_norm=True)
