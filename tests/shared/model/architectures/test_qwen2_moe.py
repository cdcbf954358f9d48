import pytest

from livescale.shared.model.declaration.config_file import CheckpointError
from tests.shared.model.architectures.published import described


def test_layers_that_the_file_names_and_those_between_steps_have_no_experts() -> None:
    model = described("Qwen1.5-MoE-A2.7B-Chat", mlp_only_layers=[1], decoder_sparse_step=2)
    assert [layer for layer in range(6) if model.kind(layer).experts] == [3, 5]


def test_the_expert_that_all_rows_use_has_a_weight_of_its_own() -> None:
    experts = described("Qwen1.5-MoE-A2.7B-Chat").experts
    assert experts is not None
    assert (experts.shared_features, experts.shared_gate) == (5_632, True)


def test_windows_are_refused() -> None:
    with pytest.raises(CheckpointError, match="use_sliding_window"):
        described("Qwen1.5-MoE-A2.7B-Chat", use_sliding_window=True)
